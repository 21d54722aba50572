"""BFCL: does the model call the function that a request needs (Patil et al. 2025)?

Berkeley Function Calling Leaderboard v4, its single-turn Python categories. Functions
are only described, never run: a call is recorded and compared (`call_match`).
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.tools import ToolCall, ToolReply, ToolSpec
from metaharness.errors import TaskError
from metaharness.tasks.call_match import calls_match, gold_arguments
from metaharness.tasks.domain import (
    NO_CALL,
    argument_problem,
    call_text,
    unknown_tool,
)
from metaharness.tasks.jsonl import read_rows
from metaharness.tasks.prepare import find_file
from metaharness.tasks.splits import make_splits
from metaharness.tasks.task import (
    Item,
    SplitSizes,
    Task,
    answer_limits,
    fingerprint,
)

# Category to the stem of its file.
CATEGORIES = {
    "simple": "simple_python",
    "multiple": "multiple",
    "irrelevance": "irrelevance",
    "parallel": "parallel",
    "parallel_multiple": "parallel_multiple",
}
_MARKS = 32  # tokens of what a protocol writes around a call
SIZES = {
    "simple": SplitSizes(pool=64, train=128, validation=64, test=144),
    "multiple": SplitSizes(pool=32, train=60, validation=32, test=72),
    "irrelevance": SplitSizes(pool=32, train=76, validation=40, test=88),
    "parallel": SplitSizes(pool=32, train=64, validation=32, test=72),
    "parallel_multiple": SplitSizes(pool=32, train=64, validation=32, test=72),
}
_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "any": None,
    **{name: name for name in ("string", "integer", "boolean", "array")},
}


class BfclEnvironment:
    """One item's functions; a call is recorded and does nothing.

    Every call counts, also one that gets an error reply: as upstream judges it, there
    is one try, and so the episode is over after the text that called.
    """

    def __init__(self, item: Item) -> None:
        self.tools = tuple(
            ToolSpec(tool["name"], tool["description"], tool["parameters"])
            for tool in item.meta["tools"]
        )
        self._truths = item.meta["truths"]
        self._calls: list[ToolCall] = []

    @property
    def done(self) -> bool:
        """After the first call: texts are judged whole."""
        return bool(self._calls)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Record a call; never raises."""
        given = dict(arguments) if isinstance(arguments, Mapping) else {}
        self._calls.append(ToolCall(name, given))
        found = [spec for spec in self.tools if spec.name == name]
        if not found:
            names = tuple(spec.name for spec in self.tools)
            return ToolReply(unknown_tool(name, names), error=True)
        problem = argument_problem(found[0], arguments)
        return ToolReply(problem or "recorded", error=bool(problem))

    def reward(self, answer: str) -> float:
        """1.0 where the calls are those wanted, in any order, else 0.0.

        The answer's text counts for nothing; where no call is wanted, only calling
        nothing is right.
        """
        del answer
        return float(calls_match(self._calls, self._truths, self.tools))


def load_bfcl(
    *,
    data_dir: Path | None,
    seed: int,
    sizes: SplitSizes | None,
    category: str = "simple",
) -> Task:
    """The items of one of `CATEGORIES`, graded by the calls that are made.

    simple: one function, one call; multiple: one call of one among several functions;
    parallel, parallel_multiple: several calls; irrelevance: functions of which none
    serves the request. The question is the user's one turn. The answer, for the
    likelihood, is the gold calls as JSON, one a line, with the first accepted value of
    each argument that may not be left out (`NO_CALL` for irrelevance); an episode is
    graded by its environment (`BfclEnvironment.reward`), there is no scorer. meta:
    `tools` (name, description, JSON schema), `truths` (as `call_match` reads them).

    data_dir: folder that holds bfcl/FILE.jsonl and bfcl/FILE.answers.jsonl (or
    .jsonl.gz, or without the subfolder), FILE the category's in `CATEGORIES`.

    Raises TaskError when the data is not there or is malformed.
    """
    items, digest = read_category(data_dir, category)
    name = f"bfcl_{category}"
    splits = make_splits(
        name, {"": items}, sizes or SIZES[category], seed, at_most=sizes is None
    )
    most, _ = answer_limits([item for rows in splits.values() for item in rows])
    return Task(
        name=name,
        **splits,
        scorer=None,
        max_new_tokens=most + _MARKS,
        stop=(),
        fingerprint=fingerprint(splits),
        source=f"BFCL v4 {category}, SHA-256 of its rows {digest}, seed {seed}",
        environment=BfclEnvironment,
    )


def read_category(data_dir: Path | None, category: str) -> tuple[list[Item], str]:
    """All items of a category, in the file's order, and the SHA-256 of their rows.

    Raises TaskError.
    """
    if category not in CATEGORIES:
        raise TaskError(
            f"bfcl: expected a category among {', '.join(CATEGORIES)}, got "
            f"{category!r}."
        )
    name, stem = f"bfcl_{category}", CATEGORIES[category]
    questions = _find(data_dir, name, stem)
    digest = hashlib.sha256()
    truths: dict[str, Any] = {}
    if category != "irrelevance":
        answers = _find(data_dir, name, f"{stem}.answers")
        for number, row in read_rows(answers):
            digest.update(repr(row).encode())
            if not isinstance(row.get("ground_truth"), list):
                raise TaskError(
                    f"{answers}:{number}: expected a list in field 'ground_truth', got "
                    "none; fetch the file again."
                )
            truths[str(row.get("id"))] = row["ground_truth"]
    items = []
    for number, row in read_rows(questions):
        digest.update(repr(row).encode())
        wanted = [] if category == "irrelevance" else truths.get(str(row.get("id")))
        items.append(_item(f"{questions}:{number}", row, wanted))
    return items, digest.hexdigest()


def json_schema(described: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of a type as BFCL describes it, annotations kept.

    "dict", "float" and "tuple" become object, number and array; "any" has no type.
    Raises KeyError for a type that is none of Python's.
    """
    schema = dict(described)
    name = _TYPES[schema.pop("type")]
    if "properties" in schema:
        schema["properties"] = {
            key: json_schema(inner) for key, inner in schema["properties"].items()
        }
    if "items" in schema:
        schema["items"] = json_schema(schema["items"])
    return schema if name is None else {"type": name, **schema}


def _item(where: str, row: Mapping[str, Any], truths: Any) -> Item:
    if truths is None:
        raise TaskError(
            f"{where}: expected an answer with id {row.get('id')!r}, got none; fetch "
            "both files again."
        )
    try:
        ((message,),) = row["question"]
        tools = [
            {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": json_schema(tool["parameters"]),
            }
            for tool in row["function"]
        ]
        specs = {t["name"]: ToolSpec(t["name"], "", t["parameters"]) for t in tools}
        lines = []
        for truth in truths:
            ((name, accepted),) = truth.items()
            arguments = gold_arguments(accepted, specs[name])
            lines.append(call_text(specs[name], arguments))
        return Item(
            uid=row["id"],
            question=message["content"].strip(),
            answer="\n".join(lines) or NO_CALL,
            meta={"tools": tools, "truths": truths},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TaskError(
            f"{where}: expected one user turn, functions and calls as BFCL describes "
            f"them, got another thing at {error}; fetch the file again."
        ) from error


def _find(data_dir: Path | None, name: str, stem: str) -> Path:
    path = find_file(data_dir, "bfcl", stem) if data_dir else None
    if path is None:
        folder = data_dir or Path("DIR")
        got = f"no {stem}.jsonl in {data_dir}" if data_dir else "no --data-dir"
        plain = stem.removesuffix(".answers")
        where = "data" if plain == stem else "data/possible_answer"
        raise TaskError(
            f"{name}: expected its data, got {got}; copy bfcl_eval/{where}/BFCL_v4_"
            f"{plain}.json of the package bfcl-eval to {folder}/bfcl/{stem}.jsonl and "
            f"pass --data-dir {folder}"
        )
    return path
