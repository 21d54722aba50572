"""tau2-bench's retail and mock domains: act with tools until a state is reached.

Barres et al. 2025, "tau2-bench", from its published tasks, policies and databases. The
tools are our own (`retail`, `mock_domain`). What differs from upstream: nobody plays
the user (see `load_tau2`), assertions in natural language and about the user's own
devices are not checked, and the tools enforce a little more of the policy.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from metaharness.errors import TaskError
from metaharness.tasks import mock_domain, retail
from metaharness.tasks.domain import NO_CALL, Tables, Tool, call_text
from metaharness.tasks.splits import make_splits
from metaharness.tasks.task import (
    Item,
    SplitSizes,
    Task,
    fingerprint,
)
from metaharness.tasks.tau2_environment import Tau2Environment

URL = "https://github.com/sierra-research/tau2-bench/tree/main/data/tau2/domains/"
DOMAINS: dict[str, Mapping[str, Tool]] = {
    "retail": retail.TOOLS,
    "mock": mock_domain.TOOLS,
}
MAX_NEW_TOKENS = 256  # of one turn
SIZES = {
    "retail": SplitSizes(pool=16, train=38, validation=20, test=40),
    "mock": SplitSizes(pool=1, train=2, validation=1, test=2),
}
# Tasks that no episode could solve, with the reason.
UNFIT = {
    ("mock", "update_task_with_initialization_data"): "its communicate_info holds "
    "assertions about the conversation, which no answer contains word by word",
}
PARTS = ("tasks.json", "db.json", "split_tasks.json", "policy.md")
FRAME = (
    'This is what a user wants; "you" in it is the user. The user has agreed to every '
    "action that it asks for and will answer no questions: act with the tools, then "
    "write what the user is to be told."
)


class DomainData(NamedTuple):
    """items: by upstream's split, "" where there is none; tables: the database; digest:
    SHA-256 over all files; policy: the agent's rules."""

    items: dict[str, list[Item]]
    tables: Tables
    digest: str
    policy: str


def load_tau2(
    *,
    data_dir: Path | None,
    seed: int,
    sizes: SplitSizes | None,
    domain: str = "retail",
) -> Task:
    """The tasks of a domain, "retail" or "mock", graded by the state that calls leave.

    There is no simulated user: the question is the whole brief that upstream gives to
    the one who plays the user, in the first turn, with whatever talk came before it.
    The domain's policy is the task's `instructions`, for the system turn: it is the
    same for all items, and within the question each exemplar would repeat it. The
    answer is the gold calls as JSON, one a line, for the likelihood; an episode is
    graded by its environment (`Tau2Environment.reward`), there is no scorer. meta:
    `actions` (gold calls), `communicate_info`, `reward_basis`, `start`.

    The splits keep upstream's "train" and "test" where the domain has them. Left out:
    tasks that say nothing of gold actions (an empty list says that nothing is to be
    changed) and those in `UNFIT`. data_dir: folder that holds tau2/DOMAIN.tasks.json,
    .db.json, .split_tasks.json (each may end in .gz) and .policy.md, or these without
    the subfolder.

    Raises TaskError when the data is not there or is malformed.
    """
    found = read_domain(data_dir, domain)
    name = f"tau2_{domain}"
    splits = make_splits(
        name, found.items, sizes or SIZES[domain], seed, at_most=sizes is None
    )
    return Task(
        name=name,
        **splits,
        scorer=None,
        max_new_tokens=MAX_NEW_TOKENS,
        stop=(),
        fingerprint=fingerprint(splits),
        source=f"tau2-bench {domain}, SHA-256 of its files {found.digest}, seed {seed}",
        environment=partial(Tau2Environment, DOMAINS[domain], found.tables),
        instructions=found.policy,
    )


def read_domain(data_dir: Path | None, domain: str) -> DomainData:
    """All tasks of a domain that are not left out; see `load_tau2`.

    Raises TaskError.
    """
    if domain not in DOMAINS:
        raise TaskError(
            f"tau2: expected a domain among {', '.join(DOMAINS)}, got {domain!r}."
        )
    files = {part: _file(data_dir, domain, part) for part in PARTS}
    read = {part: _unpacked(path) for part, path in files.items()}
    tasks = _json(files["tasks.json"], read["tasks.json"], list)
    tables = _json(files["db.json"], read["db.json"], dict)
    places = _json(files["split_tasks.json"], read["split_tasks.json"], dict)
    items: dict[str, list[Item]] = {}
    for row in tasks:
        item = _item(files["tasks.json"], domain, row)
        if item is not None:
            named = [
                s for s in ("test", "train") if str(row["id"]) in places.get(s, ())
            ]
            items.setdefault((*named, "")[0], []).append(item)
    digest = hashlib.sha256(b"\0".join(read.values())).hexdigest()
    policy = read["policy.md"].decode(errors="replace").strip()
    return DomainData(items, tables, digest, policy)


def _item(path: Path, domain: str, row: Any) -> Item | None:
    """The item of a task, None for a task that is left out."""
    try:
        criteria = row["evaluation_criteria"]
        if criteria.get("actions") is None or (domain, row["id"]) in UNFIT:
            return None
        actions = [
            {
                "name": action["name"],
                "arguments": action["arguments"],
                "compare": action.get("compare_args"),
            }
            for action in criteria["actions"]
        ]
        tools = DOMAINS[domain]
        lines = [call_text(tools[a["name"]].spec, a["arguments"]) for a in actions]
        return Item(
            uid=f"tau2/{domain}/{row['id']}",
            question=_question(row),
            answer="\n".join(lines) or NO_CALL,
            meta={
                "actions": actions,
                "communicate_info": criteria.get("communicate_info") or [],
                "reward_basis": criteria.get("reward_basis") or ["DB"],
                "start": _start_of(row.get("initial_state") or {}),
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        name = row.get("id") if isinstance(row, dict) else row
        raise TaskError(
            f"{path}: task {name!r}: expected fields as upstream writes them, got none "
            f"or another kind at {error}; fetch the file again."
        ) from error


def _question(row: Mapping[str, Any]) -> str:
    scenario = row["user_scenario"]
    brief = scenario["instructions"]
    if isinstance(brief, str):
        brief = {"reason_for_call": brief}
    parts = {
        "Who you are": brief.get("known_info"),
        "Manner": scenario.get("persona"),
        "Request": brief["reason_for_call"],
        "Further instructions": brief.get("task_instructions"),
        "Not known to you": brief.get("unknown_info"),
    }
    said = [
        f"{label}: {part.strip()}"
        for label, part in parts.items()
        if part and part.strip(" .\n")
    ]
    state = row.get("initial_state") or {}
    history = [
        line for turn in state.get("message_history") or () for line in _lines(turn)
    ]
    before = ["What was said and done before:", *history] if history else []
    return "\n".join([FRAME, *said, *before])


def _lines(turn: Mapping[str, Any]) -> list[str]:
    """A turn of an earlier conversation as the question shows it."""
    lines = [f"{turn['role']}: {turn['content']}"] if turn.get("content") else []
    return lines + [
        f"{turn['role']} called {call['name']} with {json.dumps(call['arguments'])}"
        for call in turn.get("tool_calls") or ()
    ]


def _start_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """data: fields to set, by table and key; calls: to make before the episode.

    Calls that an earlier conversation holds are made again; those on the user's own
    devices are left out.
    """
    data = (state.get("initialization_data") or {}).get("agent_data") or {}
    calls = [
        {"name": call["func_name"], "arguments": call["arguments"]}
        for call in state.get("initialization_actions") or ()
        if call["env_type"] == "assistant"
    ]
    for turn in state.get("message_history") or ():
        if turn["role"] == "assistant":
            calls += [
                {"name": call["name"], "arguments": call["arguments"]}
                for call in turn.get("tool_calls") or ()
            ]
    return {"data": data, "calls": calls}


def _file(data_dir: Path | None, domain: str, part: str) -> Path:
    name = f"{domain}.{part}"
    for place in (data_dir / "tau2", data_dir) if data_dir else ():
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return path
    folder = data_dir or Path("DIR")
    got = f"no {name} in {data_dir}" if data_dir else "no --data-dir"
    raise TaskError(
        f"tau2_{domain}: expected its data, got {got}; fetch {URL}{domain}/{part} as "
        f"{folder / 'tau2' / name} and pass --data-dir {folder}"
    )


def _unpacked(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(
            f"{path}: expected a file, packed or not, got {error}; fetch it again."
        ) from error


def _json(path: Path, data: bytes, kind: type) -> Any:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise TaskError(
            f"{path}: expected JSON, got {error}; fetch the file again."
        ) from error
    if not isinstance(value, kind):
        raise TaskError(
            f"{path}: expected a JSON {kind.__name__}, got {type(value).__name__}; "
            "fetch the file again."
        )
    return value
