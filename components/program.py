"""Python programs in a model's answer: found by lines, never compiled or run.

Nothing is parsed with `ast`: a hostile text can crash the interpreter's own parser.
"""

import os
import re

from components.fences import Block, fenced_blocks

_PYTHON = ("", "python", "python3", "py", "py3", "{python}")
# Strings (an unclosed one ends with its line), comments and brackets of a line.
_SIGN = re.compile(
    r"'''|\"\"\"|'(?:\\.|[^'\\])*+'?|\"(?:\\.|[^\"\\])*+\"?|#.*|[()\[\]{}]"
)
_DEFINITION = re.compile(r"(?:async[ \t]+def|def|class)[ \t]+(\w+)[ \t]*[(:\[]")
_ASSIGNMENT = re.compile(r"([^\W\d]\w*)[ \t]*(?::[^=]*)?=(?!=)")
_IMPORT = re.compile(
    r"from[ \t]+[.\w]+[ \t]+import[ \t]+[*(\w]"
    r"|import[ \t]+[.\w]+(?:[ \t]+as[ \t]+\w+)?[ \t]*(?:[,;#]|$)"
)
_STATEMENT = re.compile(
    r"(?:return|for|if|while|with|try|raise|yield|pass|del|assert|global|nonlocal"
    r"|elif|else|except|finally|match|break|continue|lambda|not|print)\b"
    r"|[\w.]+(?:\[[^\]]*\])?(?:,[ \t]*[\w.]+)*[ \t]*"
    r"(?:[-+*/%&|^@]|//|\*\*|<<|>>)?=(?!=)"
    r"|[\w.]+\(|[#@)\]}]|[rbfRBF]?(?:'|\")"
)
_CLAUSE = re.compile(r"(?:elif|else|except|finally|case)\b|[)\]}]")
_WORD = re.compile(r"[^\W\d]\w*")


def extract_program(
    text: str, entry_point: str | None = None, prompt: str = ""
) -> str | None:
    """The Python program that an answer gives, with line breaks "\\n"; None if none.

    entry_point: name that the program must define at its top level. prompt: code that
    the answer continues or repeats, ending inside the entry point's head (HumanEval).

    Without an entry point: the last fenced block of Python that defines something, else
    the first block of Python, else the top-level definitions in the bare text.

    With one, the first of these that is there; the result always defines the name:
    - the text starts as an indented statement: it is the body, put under the prompt;
    - the last closed fenced block that defines it, else the last unclosed one, else
      the bare text before the first fence (where an opening fence was in the prompt),
      else all of the text. What the prompt holds before the entry point comes first.
      After the entry point only imports, and what the code kept so far names, stay:
      example calls, tests and functions of a next problem do not;
    - the first fenced block, else the bare text, as the body under the prompt.

    A body is moved to the prompt's indentation (tabs, a first line whose own was
    stripped) and ends at the first line that is not indented, but for functions that it
    names. Deviation from Chen et al. 2021, who run prompt + text as they are.
    """
    text, prompt = _unix(text), _unix(prompt)
    blocks, lead = fenced_blocks(text)
    lead = lead.lstrip("\n")
    python = [block for block in blocks if block.language in _PYTHON]
    if entry_point is None:
        return _any_program(python, lead)
    continues = _defines(prompt, entry_point)
    if continues and lead[:1] in (" ", "\t") and _starts_body(lead):
        return _under(prompt, lead, entry_point, fenced=False)
    for closed in (True, False):
        for block in reversed(blocks):
            if block.closed is closed and _defines(block.code, entry_point):
                program = _prune(_dedent(block.code), entry_point, fenced=True)
                return _with_preamble(program, prompt, entry_point)
    for bare in (lead, text):
        if _defines(bare, entry_point):
            program = _prune(_dedent(bare), entry_point, fenced=False)
            return _with_preamble(program, prompt, entry_point)
    if not continues:
        return None
    for block in python:
        if _starts_body(block.code):
            return _under(prompt, block.code, entry_point, fenced=True)
    if _starts_body(lead):
        return _under(prompt, lead, entry_point, fenced=False)
    return None


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _dedent(code: str) -> str:
    """The code without the indentation that all its lines share.

    Unlike `textwrap.dedent` it keeps lines of white space: they may be in a string.
    """
    lines = code.split("\n")
    bare = [line.lstrip(" \t") for line in lines]
    margin = os.path.commonprefix(
        [a[: len(a) - len(b)] for a, b in zip(lines, bare, strict=True) if b.strip()]
    )
    return "\n".join(line.removeprefix(margin) for line in lines)


def _any_program(blocks: list[Block], lead: str) -> str | None:
    codes = [_dedent(block.code) for block in blocks if block.code.strip()]
    for code in reversed(codes):
        if any(_DEFINITION.match(line) for line in code.split("\n")):
            return _ended(code)
    if codes:
        return _ended(codes[0])
    chunks = [chunk for chunk in _chunks(_dedent(lead)) if _is_code(chunk)]
    defines = any(_DEFINITION.match(line) for chunk in chunks for line in chunk)
    return _ended(_joined(chunks)) if defines else None


def _defines(code: str, name: str) -> bool:
    return any(name in _names(chunk) for chunk in _chunks(_dedent(code)))


def _names(chunk: list[str]) -> tuple[str, ...]:
    """The name that a top-level statement defines or assigns, if any."""
    for line in chunk:
        if line[:1] == "@":
            continue
        match = _DEFINITION.match(line) or _ASSIGNMENT.match(line)
        return (match[1],) if match else ()
    return ()


def _outside(lines: list[str]) -> list[bool]:
    """For each line, whether it starts outside of all strings and brackets.

    A definition at the left margin closes open brackets: text in front of code may hold
    any number of them.
    """
    outside: list[bool] = []
    quote, depth = "", 0
    for line in lines:
        if not quote and (_DEFINITION.match(line) or _IMPORT.match(line)):
            depth = 0
        outside.append(not quote and not depth)
        start = 0
        while start < len(line):
            if quote:
                end = line.find(quote, start)
                if end < 0:
                    break
                quote, start = "", end + 3
                continue
            match = _SIGN.search(line, start)
            if not match:
                break
            sign, start = match[0], match.end()
            if sign in ("'''", '"""'):
                quote = sign
            elif sign in "([{":
                depth += 1
            elif sign in ")]}":
                depth = max(0, depth - 1)
    return outside


def _chunks(code: str) -> list[list[str]]:
    """Top-level statements, each with its lines; decorators go with what they mark."""
    chunks: list[list[str]] = []
    lines = code.split("\n")
    joined = False
    for line, outside in zip(lines, _outside(lines), strict=True):
        head = outside and line[:1] not in ("", " ", "\t")
        if not chunks or (head and not joined and not _CLAUSE.match(line)):
            chunks.append([])
        chunks[-1].append(line)
        if head:
            joined = line[:1] == "@"
    return chunks


def _prune(code: str, entry_point: str, *, fenced: bool) -> str:
    """The code up to the entry point, and what of the rest that needs.

    In bare text only imports, definitions and assignments count as code, and the first
    definition of the entry point is the answer, not a later repetition.
    """
    chunks = _chunks(code)
    places = [i for i, chunk in enumerate(chunks) if entry_point in _names(chunk)]
    place = places[-1 if fenced else 0]
    kept = [chunk for chunk in chunks[:place] if fenced or _is_code(chunk)]
    kept.append(chunks[place])
    return _joined(kept + _needed(kept, chunks[place + 1 :], entry_point))


def _needed(
    kept: list[list[str]], later: list[list[str]], entry_point: str
) -> list[list[str]]:
    """Later imports, and later definitions of names that the code kept so far uses."""
    taken: set[int] = set()
    places: dict[str, list[int]] = {}
    for i, chunk in enumerate(later):
        if _IMPORT.match(chunk[0]):
            taken.add(i)
        for name in _names(chunk):
            if name != entry_point:
                places.setdefault(name, []).append(i)
    waiting = list(kept)
    while waiting and places:
        for word in _WORD.findall("\n".join(waiting.pop())):
            for i in places.pop(word, ()):
                taken.add(i)
                waiting.append(later[i])
    return [later[i] for i in sorted(taken)]


def _is_code(chunk: list[str]) -> bool:
    return bool(_names(chunk)) or bool(_IMPORT.match(chunk[0]))


def _joined(chunks: list[list[str]]) -> str:
    return "\n".join(line for chunk in chunks for line in chunk)


def _ended(code: str) -> str:
    """The code without blank lines around it, with one line break at its end."""
    return code.strip("\n").rstrip() + "\n"


def _with_preamble(program: str, prompt: str, entry_point: str) -> str:
    """The program behind what the prompt holds before the entry point."""
    preamble: list[str] = []
    for chunk in _chunks(prompt):
        if entry_point in _names(chunk):
            break
        preamble += chunk
    before = "\n".join(preamble).strip("\n")
    if not before or program.lstrip("\n").startswith(before):
        return _ended(program)
    lines = program.split("\n")
    future = [line for line in lines if line.startswith("from __future_")]
    rest = [line for line in lines if not line.startswith("from __future_")]
    return _ended("\n".join([*future, before, "", *rest]))


def _starts_body(code: str) -> bool:
    """Whether code reads as the inside of a function.

    A definition at the margin does where a `return` stands further left than the line
    below that definition: it is an inner function.
    """
    lines = [line.expandtabs(4) for line in code.split("\n") if line.strip()]
    if not lines:
        return False
    first = lines[0].strip()
    if _DEFINITION.match(first) and _depth(lines[0]) == 0:
        below = _depth(lines[1]) if len(lines) > 1 else 0
        return any(
            _depth(line) < below and line.lstrip().startswith("return")
            for line in lines[1:]
        )
    return any(p.match(first) for p in (_STATEMENT, _IMPORT, _DEFINITION))


def _under(prompt: str, body: str, entry_point: str, *, fenced: bool) -> str:
    """The prompt and below it the body, at the prompt's indentation."""
    head = prompt.rstrip().split("\n")
    unit = _unit(head)
    lines = [_spaced(line, unit) for line in body.strip("\n").split("\n")]
    outside = _outside(lines)
    solid = [i for i, line in enumerate(lines) if i and outside[i] and line.strip()]
    left = next((i for i in solid if _depth(lines[i]) == 0), len(lines))
    first, run = _depth(lines[0]), [_depth(lines[i]) for i in solid if i < left]
    # A first line that lost its indentation: what follows cannot stand below it.
    opens = lines[0].rstrip().endswith(":")
    if run and min(run) > first and (not opens or min(run) < run[0]):
        lines[0] = " " * min(run) + lines[0].lstrip()
    end = left
    if _depth(lines[0]) == 0:
        strange = (i for i in solid if _is_strange(lines[i]))
        end = len(lines) if fenced else next(strange, len(lines))
    shift = unit - _depth(lines[0])
    for i in range(end):
        if outside[i] and lines[i].strip():
            lines[i] = " " * max(0, _depth(lines[i]) + shift) + lines[i].lstrip()
    kept = [[*head, *lines[:end]]]
    later = _chunks("\n".join(lines[end:])) if end < len(lines) else []
    return _ended(_joined(kept + _needed(kept, later, entry_point)))


def _is_strange(line: str) -> bool:
    """Whether a line at the left margin cannot belong to a body without indentation."""
    if _depth(line):
        return False
    return bool(_DEFINITION.match(line)) or not (
        _STATEMENT.match(line) or _is_code([line])
    )


def _unit(head: list[str]) -> int:
    """Indentation below the last definition of the prompt (its docstring's), or 4."""
    places = [i for i, line in enumerate(head) if _DEFINITION.match(line)]
    below = head[places[-1] + 1 :] if places else []
    return next((depth for line in below if (depth := _depth(_spaced(line, 4)))), 4)


def _spaced(line: str, unit: int) -> str:
    """The line with tabs in its indentation written as spaces."""
    bare = line.lstrip(" \t")
    return line[: len(line) - len(bare)].expandtabs(unit) + bare


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
