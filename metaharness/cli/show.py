"""`metaharness show`: what a run learned, in the terminal."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from rich.console import Console

    from metaharness.runlog.report_data import Prompt, Report, SlotReport

_BAR = 20
_SHOWN = 6


@dataclass(frozen=True)
class Show:
    """Print a run's scores, learned probabilities and final prompts.

    Of an evaluation: its scores, or one episode as a conversation.
    """

    run: Annotated[Path, Positional, arg(metavar="RUN")]
    """run directory"""
    task: str | None = None
    """only this task"""
    all: bool = False
    """every candidate, not only the likeliest"""
    episode: int | None = None
    """one episode of an evaluation, by its number in episodes.jsonl, from 0"""

    def execute(self) -> int:
        """Print the run."""
        from metaharness.runlog.report_data import from_json
        from metaharness.runlog.rundir import RunDirectory
        from metaharness.runlog.table import wide_console

        directory = RunDirectory.open(self.run)
        if self.episode is not None or (self.run / "episodes.jsonl").is_file():
            from metaharness.cli.episode import print_episode, print_evaluation

            if self.episode is None:
                print_evaluation(wide_console(), self.run)
            else:
                print_episode(wide_console(), self.run, self.episode)
            return 0
        report = from_json(directory.read_json("report.json"))
        tasks = list(dict.fromkeys(prompt.task for prompt in report.prompts))
        if self.task is not None:
            if self.task not in tasks:
                from metaharness.errors import InputError

                raise InputError(
                    f"task: expected one of the run's, {', '.join(tasks)}, got "
                    f"{self.task!r}; name one of these"
                )
            tasks = [self.task]
        console = wide_console()
        _scores(console, report, tasks)
        for task in tasks:
            console.rule(task, align="left")
            for slot in report.slots:
                if slot.task == task:
                    _slot(console, slot, self.all)
            for prompt in report.prompts:
                if prompt.task == task:
                    _prompt(console, prompt)
        console.print(f"report: {directory.report_file}", soft_wrap=True)
        return 0


def _scores(console: "Console", report: "Report", tasks: list[str]) -> None:
    from metaharness.runlog.report_data import OVERALL
    from metaharness.runlog.table import attribution_table, score_table
    from metaharness.runlog.words import headline

    everything = len(tasks) == len({prompt.task for prompt in report.prompts})
    console.print(f"{report.title}  ({report.model})", style="bold", markup=False)
    rows = [
        row
        for row in report.scores
        if row.task in tasks or (everything and row.task == OVERALL)
    ]
    if rows:
        console.print(score_table(rows))
    parts = [
        part
        for part in report.attribution
        if part.task in tasks or (everything and part.task == OVERALL)
    ]
    if parts:
        console.print(attribution_table(parts))
    if everything:
        said = headline(report)
        for sentence in (said.lead, *said.points):
            console.print(sentence, markup=False)
        for note in report.notes:
            style = "yellow" if note.kind == "warning" else "dim"
            console.print(note.text, style=style, markup=False)


def _slot(console: "Console", slot: "SlotReport", every: bool) -> None:
    """Candidates by falling chance, the chosen ones always among them."""
    from rich.table import Table
    from rich.text import Text

    from metaharness.runlog import formats, words

    chance = slot.probabilities[-1]
    order = sorted(range(len(chance)), key=lambda index: -chance[index])
    top = order if every else order[: max(_SHOWN, slot.k)]
    shown = [i for i in order if i in top or i in slot.chosen]
    table = Table(box=None, pad_edge=False, show_header=False, expand=True)
    for place in range(5):
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=place // 4 or None)
    for index in shown:
        candidate = slot.candidates[index]
        chosen = index in slot.chosen
        table.add_row(
            Text("●" if chosen else " "),
            Text(formats.probability(chance[index])),
            Text("█" * round(_BAR * chance[index])),
            Text(words.kind_label(candidate.kind)),
            Text(" ".join(candidate.text.split())),
            style="bold" if chosen else "",
        )
    console.print(f"\n{slot.slot}: {words.slot_summary(slot)}", markup=False)
    console.print(table)
    if len(shown) < len(order):
        console.print(f"… {len(order) - len(shown)} more: --all", style="dim")


def _prompt(console: "Console", prompt: "Prompt") -> None:
    from rich.panel import Panel
    from rich.text import Text

    title = "final prompt"
    if prompt.num_tokens is not None:
        title += f", {prompt.num_tokens} tokens"
    console.print()
    console.print(Panel(Text(prompt.text), title=title, title_align="left"))
    console.print(Text(f"gold answer: {prompt.answer}\n", style="dim"))
