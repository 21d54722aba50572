"""From words to a command's options; every mistake becomes one line."""

import contextlib
import dataclasses
import difflib
import io
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tyro

from metaharness.errors import InputError

PROGRAM = "metaharness"
_NONE: Mapping[str, Any] = types.MappingProxyType({})
_MARKERS = (
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.DisallowNone,
    tyro.conf.FlagCreatePairsOff,
)
_ABOUT = f"""Learn the harness around a language model: which exemplars, which template.

Each command has its own --help; {PROGRAM} --version prints the version."""


def parse(
    arguments: Sequence[str],
    commands: Mapping[str, type],
    defaults: Mapping[str, Any] = _NONE,
) -> Any:
    """The options of the command that the arguments name, as its dataclass.

    defaults: command -> options that hold where the arguments say nothing. Prints and
    raises SystemExit(0) for ``--help``.

    Raises InputError for a command or option that does not exist (with the closest
    that does), a missing or an unusable value.
    """
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is not None and first not in commands and arguments[0] == first:
        raise InputError(
            f"expected a command among {', '.join(commands)}, got {first!r}; "
            + (_closest(first, commands) or f"see {PROGRAM} --help")
        )
    union = _union(commands, defaults, brief=first is None)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            options, unknown = tyro.cli(
                union,
                prog=PROGRAM,
                description=_ABOUT,
                args=arguments,
                return_unknown_args=True,
                config=_MARKERS,
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise InputError(_one_line(printed.getvalue(), first)) from None
    sys.stderr.write(printed.getvalue())
    if unknown:
        raise InputError(_unknown(unknown[0], first, type(options)))
    return options


def option_names(options: type) -> Iterator[str]:
    """Names of a command's options, as they are typed, nested ones by path."""
    yield "--help"
    yield from (f"--{name}" for name in _field_paths(options))


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """What is typed for an option, or None: ``--name value`` or ``--name=value``."""
    for place, word in enumerate(arguments):
        if word == option:
            return arguments[place + 1] if place + 1 < len(arguments) else None
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def _union(
    commands: Mapping[str, type], defaults: Mapping[str, Any], *, brief: bool
) -> Any:
    """brief: describe each command by its first sentence, for the list of all."""
    parts = []
    for name, options in commands.items():
        said = (options.__doc__ or "").split("\n\n")[0] if brief else None
        given = {"default": defaults[name]} if name in defaults else {}
        about = tyro.conf.subcommand(name, description=said, **given)
        parts.append(typing.Annotated[options, about])
    return typing.Union[tuple(parts)]  # noqa: UP007 - built from a dict


def _field_paths(options: type) -> Iterator[str]:
    hints = typing.get_type_hints(options)
    for field in dataclasses.fields(options):
        name = field.name.replace("_", "-")
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from (f"{name}.{inner}" for inner in _field_paths(kind))
        elif kind is bool and field.default is True:
            yield f"no-{name}"
        else:
            yield name


def _unknown(word: str, command: str | None, options: type) -> str:
    where = f"{PROGRAM} {command}"
    if not word.startswith("-"):
        return f"{where}: expected no further argument, got {word!r}; remove it"
    typed = word.split("=")[0].replace("_", "-")
    known = list(option_names(options))
    ends = [name for name in known if _last(name) == _last(typed)]
    hint = f"did you mean {ends[0]}?" if ends else _closest(typed, known)
    return f"{where}: expected an option that exists, got {word.split('=')[0]!r}; " + (
        hint or f"see {where} --help"
    )


def _last(option: str) -> str:
    return option.removeprefix("--").rsplit(".", 1)[-1].removeprefix("no-")


def _closest(word: str, known: typing.Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def _one_line(box: str, command: str | None) -> str:
    """The first section of the box that tyro prints, without its frame."""
    kept = []
    for line in box.splitlines()[1:]:
        text = line.strip("│| ").strip()
        if set(text) <= set("─-+╰╯"):
            break
        kept.append(text)
    said = " ".join(kept)
    said = re.sub(r"^Error parsing __tyro-dummy-inner__\S*:? ", "", said)
    if ";" in said:  # one of our own checks: it names the remedy itself
        return said
    said = said[:1].lower() + said[1:].rstrip(".")
    where = f"{PROGRAM} {command} --help" if command else f"{PROGRAM} --help"
    return f"{said}; see {where}"
