"""An evaluation and its episodes, as a person would read them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.rule import Rule
from rich.text import Text

from metaharness.errors import InputError
from metaharness.harness.episode_log import Logged, read_episodes
from metaharness.harness.trace import Step
from metaharness.runlog import formats
from metaharness.runlog.rundir import RunDirectory
from metaharness.runlog.table import reached_table

if TYPE_CHECKING:
    from rich.console import Console

_LISTED = 20


def print_evaluation(console: "Console", folder: Path) -> None:
    """Where the episodes of an evaluation ended, and the first of them in a line."""
    episodes = list(read_episodes(folder))
    scores = RunDirectory.open(folder)
    if (folder / "scores.json").is_file():
        for task, found in scores.read_json("scores.json")["reached"].items():
            console.print(f"{task}: where episodes ended", markup=False)
            console.print(reached_table(found))
    else:
        console.print("not finished: run the same command with the same --out")
    for number, (trace, question, _) in enumerate(episodes[:_LISTED]):
        asked = " ".join(question.split())
        line = f"{number:>5}  {trace.reached.value:<28} {trace.task}  {asked}"
        console.print(Text(line), no_wrap=True, overflow="ellipsis")
    if len(episodes) > _LISTED:
        console.print(f"… {len(episodes) - _LISTED:,} more", style="dim")
    console.print(f"one of them: metaharness show {escape(str(folder))} --episode N")


def print_episode(console: "Console", folder: Path, number: int) -> None:
    """One episode: the question, every text and tool call, and what was graded.

    Raises InputError: no such episode.
    """
    episodes = list(read_episodes(folder))
    if not 0 <= number < len(episodes):
        raise InputError(
            f"episode: expected 0 to {len(episodes) - 1}, got {number}; "
            f"{folder} holds {len(episodes)}"
        )
    logged = episodes[number]
    trace = logged.trace
    console.print(
        f"episode {number}: {trace.task}, {trace.uid}, sample {trace.sample}",
        style="bold",
        markup=False,
    )
    console.print(_harness(logged), style="dim", markup=False)
    _block(console, "question", logged.question)
    for step in trace.steps:
        _step(console, step)
    console.print(Rule("end", align="left"))
    answer = "none" if trace.answer is None else repr(trace.answer)
    console.print(f"answer: {answer}", markup=False)
    console.print(f"gold:   {logged.gold!r}", markup=False)
    console.print(
        f"{trace.reached.value}; reward {trace.reward:g}", style="bold", markup=False
    )
    console.print(
        f"{trace.prompt_tokens:,} prompt tokens, {trace.new_tokens:,} written, "
        f"{formats.duration(trace.seconds)}",
        markup=False,
    )


def _harness(logged: Logged) -> str:
    chosen = logged.trace.choice
    shots = ", ".join(map(str, chosen.exemplars)) or "none"
    rest = {name: value for name, value in chosen._asdict().items() if value}
    rest.pop("exemplars", None)
    others = "".join(f", {name} {value}" for name, value in rest.items())
    return f"exemplars {shots}{others or ', the first candidate of every other slot'}"


def _step(console: "Console", step: Step) -> None:
    notes = [f"{step.new_tokens} tokens", f"confidence {step.confidence:.2f}"]
    if step.cached:
        notes.append("from the cache")
    if not step.ended:
        notes.append("cut at the limit")
    name = f"attempt {step.attempt + 1} ({', '.join(notes)})"
    _block(console, name, step.text)
    for use in step.uses:
        arguments = json.dumps(dict(use.arguments), ensure_ascii=False)
        _block(console, f"tool {use.name}", arguments)
        _block(console, "error" if use.error else "reply", use.reply)
    if step.problem:
        console.print(f"refused: {step.problem}", style="yellow", markup=False)


def _block(console: "Console", name: str, text: str) -> None:
    console.print(Rule(name, align="left", style="dim"))
    console.print(Text(text))
