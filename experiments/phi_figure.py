"""Draw what phi did over a training of ``experiments.both_stages``, for the README.

    python -m experiments.phi_figure

Reads a cell of the stored results (mean over its seeds) and writes an SVG beside them.
Device: any; a second.
"""

import dataclasses
from pathlib import Path

import matplotlib
import tyro

from metaharness.runlog import jsonfile

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402 - after the backend is chosen

RESULTS = Path(__file__).parent / "results"
_SHOWN = 6
_GREY = "#8a8f98"
_COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#00798c")


@dataclasses.dataclass(frozen=True)
class PhiFigureConfig:
    """Which cell of which file."""

    results: Path = RESULTS / "both_stages-h200.json"
    task: str = "singular_to_plural"
    method: str = "phi"
    out: Path = RESULTS / "phi_over_time.svg"


def main(config: PhiFigureConfig) -> None:
    data = jsonfile.read_json(config.results)
    (cell,) = (
        c
        for c in data["cells"]
        if (c["task"], c["method"]) == (config.task, config.method)
    )
    figure, axes = plt.subplots(
        1, 2, figsize=(8.4, 3.0), sharex=True, width_ratios=(3, 2)
    )
    for axis, (slot, k) in zip(
        axes, (("exemplars", data["config"]["k"]), ("template", 1)), strict=True
    ):
        chances = [[k / len(row) for row in cell["chances"][slot][:1] for _ in row]]
        chances += cell["chances"][slot]
        steps = [0, *cell["steps"]]
        pool = len(chances[0])
        order = sorted(range(pool), key=lambda i: -chances[-1][i])
        for rank, candidate in reversed(list(enumerate(order))):
            lit = rank < min(_SHOWN, pool)
            axis.plot(
                steps,
                [row[candidate] for row in chances],
                color=_COLOURS[rank] if lit else _GREY,
                linewidth=1.8 if lit else 0.7,
                alpha=1.0 if lit else 0.5,
            )
        axis.set_title(f"{slot}: {k} of {pool}", fontsize=10, loc="left")
        axis.set_ylim(-0.02, 1.02)
        axis.set_xlabel("update")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("chance to be chosen")
    figure.tight_layout()
    plt.rcParams["svg.hashsalt"] = "phi"  # the same file from the same data
    figure.savefig(config.out, metadata={"Date": None})
    print(f"figure: {config.out}")


if __name__ == "__main__":
    main(tyro.cli(PhiFigureConfig, description=__doc__))
