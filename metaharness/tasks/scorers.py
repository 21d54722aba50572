"""Scorers for tasks of short answers: text and item to a reward in [0, 1].

Each is total: no text makes it raise.
"""

from collections.abc import Sequence

from components.choices import chosen_letter
from components.matching import overlap_f1, squad_normal
from components.parsers import final_number
from components.schema import accepts, read_json
from metaharness.tasks.task import Item, Scorer


def exact_match(text: str, item: Item) -> float:
    """1.0 where the text is a gold answer, white space around it aside."""
    return float(any(text.strip() == gold.strip() for gold in _golds(item)))


def normal_match(text: str, item: Item) -> float:
    """1.0 where the text equals a gold answer in `squad_normal` form.

    Two texts without words (of punctuation only) are equal only as they are written.
    """
    normal = squad_normal(text)
    if not normal:
        return exact_match(text, item)
    return float(any(normal == squad_normal(gold) for gold in _golds(item)))


def token_f1(text: str, item: Item) -> float:
    """Best `overlap_f1` of the text with a gold answer."""
    return max(overlap_f1(text, gold) for gold in _golds(item))


def number_match(text: str, item: Item) -> float:
    """1.0 where the text's final number is the gold answer's, exactly."""
    found = final_number(text)
    return float(found is not None and found == final_number(item.answer))


def choice_match(text: str, item: Item) -> float:
    """1.0 where the text chooses the gold letter; the options are `meta["options"]`."""
    chosen = chosen_letter(text, item.meta["options"])
    return float(chosen is not None and chosen == item.answer.strip().upper())


def schema_match(text: str, item: Item) -> float:
    """1.0 where the text is JSON that the schema `meta["schema"]` accepts.

    The schema is one that `components.schema.check_schema` lets pass; whoever builds
    the item checks that.
    """
    found = read_json(text)
    return float(found is not None and accepts(item.meta["schema"], found.value))


SCORERS: dict[str, Scorer] = {
    "exact": exact_match,
    "normal": normal_match,
    "f1": token_f1,
    "number": number_match,
    "choice": choice_match,
    "schema": schema_match,
}


def _golds(item: Item) -> Sequence[str]:
    """The gold answer, and all that are as good (`meta["answers"]`)."""
    return (item.answer, *item.meta.get("answers", ()))
