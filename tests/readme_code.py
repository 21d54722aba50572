"""Runs the code blocks of a Markdown file, top to bottom, in a temporary folder.

    python -P tests/readme_code.py README.md

Python blocks share one namespace, as a reader's session does. Bash blocks run only
below a line ``<!-- ci -->``; others are for a reader's eyes (downloads, long jobs).
The first failing block ends the run with its line number and a status of 1. With -P
the folder of this file is not searched: it holds a folder ``components`` of its own.
"""

import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NamedTuple

_FENCE = "```"
_RUN_MARK = "<!-- ci -->"


class Block(NamedTuple):
    language: str
    line: int  # of its first line of code, from 1
    code: str
    marked: bool  # below a line `<!-- ci -->`


def blocks(text: str) -> list[Block]:
    """Fenced blocks in order.

    Raises:
      ValueError: the last block is not closed.
    """
    found: list[Block] = []
    language, start, code, marked = None, 0, [], False
    previous = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if language is None and line.startswith(_FENCE):
            language, start, code = line[len(_FENCE) :].strip(), number + 1, []
            marked = previous == _RUN_MARK
        elif language is not None and line.rstrip() == _FENCE:
            found.append(Block(language, start, "\n".join(code) + "\n", marked))
            language = None
        elif language is not None:
            code.append(line)
        if line.strip():
            previous = line.strip()
    if language is not None:
        raise ValueError(f"line {start - 1}: expected a closing {_FENCE}, found none.")
    return found


def run(path: Path) -> int:
    """Runs what is to be run; returns the number of blocks that ran.

    Raises:
      SystemExit: a block failed; the message holds its place.
    """
    name = path.name
    namespace: dict[str, Any] = {"__name__": "__main__"}
    num_run = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "python":
            _run_python(block, name, namespace)
        elif block.language == "bash" and block.marked:
            _run_bash(block, name)
        else:
            continue
        num_run += 1
        print(f"{name}:{block.line}: {block.language} block ran", flush=True)
    return num_run


def _run_python(block: Block, name: str, namespace: dict[str, Any]) -> None:
    # empty lines above keep the line numbers of the file in a traceback
    code = "\n" * (block.line - 1) + block.code
    try:
        exec(compile(code, name, "exec"), namespace)
    except Exception:
        traceback.print_exc()
        raise SystemExit(f"{name}:{block.line}: this python block failed") from None


def _run_bash(block: Block, name: str) -> None:
    # the commands that this interpreter's environment installed come first
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    status = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code], env=os.environ | {"PATH": path}
    ).returncode
    if status:
        raise SystemExit(
            f"{name}:{block.line}: this bash block ended with status {status}"
        )


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit(f"expected one Markdown file, got {len(arguments)} arguments")
    path = Path(arguments[0]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        num_run = run(path)
        os.chdir(path.parent)
    if num_run == 0:
        raise SystemExit(f"{path.name}: no block ran; name their language")
    print(f"{path.name}: {num_run} blocks ran")


if __name__ == "__main__":
    main(sys.argv[1:])
