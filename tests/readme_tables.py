"""The README's tables, and the files that hold their numbers."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def stored(name: str) -> dict:
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


def row(first_cell: str) -> list[str]:
    """Cells of the README's table row that begins with this cell."""
    lines = [x for x in README.splitlines() if x.startswith(f"| {first_cell} |")]
    assert len(lines) == 1, f"expected one row {first_cell!r} in README, got {lines}"
    return [cell.strip() for cell in lines[0].strip("|").split("|")][1:]


def number(cell: str) -> float:
    return float(cell.replace("−", "-").replace(",", "").rstrip("%").split()[0])
