"""`metaharness tasks`: what can be named as a task."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Tasks:
    """List the tasks that can be trained on and evaluated."""

    containing: Annotated[str, Positional, arg(metavar="TEXT")] = ""
    """only names that contain this text"""

    def execute(self) -> int:
        """Print one line a task."""
        from rich.console import Console
        from rich.table import Table

        from metaharness.tasks.registry import task_names

        table = Table(box=None, pad_edge=False)
        for heading in ("task", "kind", "about"):
            table.add_column(heading, no_wrap=heading != "about")
        for info in task_names():
            if self.containing in info.name:
                table.add_row(info.name, info.kind, info.note)
        Console().print(table)
        return 0
