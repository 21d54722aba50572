"""Entry point: parse, execute a command, turn errors into one line and a status."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence

from metaharness.cli.evaluate import Evaluate
from metaharness.cli.export import Export
from metaharness.cli.generate import Generate
from metaharness.cli.models import Models
from metaharness.cli.parse import PROGRAM, parse, value_of
from metaharness.cli.show import Show
from metaharness.cli.tasks import Tasks
from metaharness.cli.train import Train

# Each holds its options and `execute() -> status`, which imports what is slow to load.
COMMANDS: dict[str, type] = {
    "train": Train,
    "evaluate": Evaluate,
    "show": Show,
    "generate": Generate,
    "export": Export,
    "tasks": Tasks,
    "models": Models,
}

REFUSED, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
TRACEBACK = "METAHARNESS_TRACEBACK"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status.

    0 done; 2 refused, with one line ``error: ...`` on standard error (a traceback
    instead where the environment sets METAHARNESS_TRACEBACK); 130 interrupted; 141 the
    reader of standard output went away.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments == ["--version"]:
            print(f"{PROGRAM} {_version()}")
            return 0
        options = parse(arguments or ["--help"], COMMANDS, _defaults(arguments))
        with warnings.catch_warnings():
            _quiet_libraries()
            status = options.execute()
        sys.stdout.flush()
        return status
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except BrokenPipeError:
        # Python flushes standard output once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        if os.environ.get(TRACEBACK):
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return REFUSED


def _defaults(arguments: Sequence[str]) -> dict[str, object]:
    """A resumed run's own options are the defaults of its command."""
    run = value_of("--resume", arguments) if arguments[:1] == ["train"] else None
    return {"train": Train.resumed(run)} if run else {}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("metaharness")
    except PackageNotFoundError:
        return "(a checkout, not installed)"


def _quiet_libraries() -> None:
    """No advice of libraries between a command's own lines.

    For this process only, and only where the user has not said otherwise.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("absl").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
