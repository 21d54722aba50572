"""Tables in Markdown, for the text beside a report page."""

from collections.abc import Mapping, Sequence


def table_lines(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """A heading and its table, line by line; bars in cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [f"## {title}", "", line(head), line(["---"] * len(head)), *map(line, rows)]


def signed_interval(value: Mapping[str, float]) -> str:
    """A difference with its bounds: mean, low and high."""
    return f"{value['mean']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"
