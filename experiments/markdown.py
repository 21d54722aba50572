"""Tables in Markdown, for the text beside a report page."""

from collections.abc import Sequence


def table_lines(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """A heading and its table, line by line; bars in cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [f"## {title}", "", line(head), line(["---"] * len(head)), *map(line, rows)]
