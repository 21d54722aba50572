"""Files of questions over paragraphs: HotpotQA, MuSiQue and SQuAD 2.0 as rows."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from metaharness.errors import TaskError
from metaharness.tasks.jsonl import read_rows, text_field
from metaharness.tasks.prepare import Rows, find_file, prepare_files

ORIGINS = {
    "hotpotqa": "https://hotpotqa.github.io (distractor setting)",
    "musique": "https://github.com/StonyBrookNLP/musique",
    "squad2": "https://rajpurkar.github.io/SQuAD-explorer (version 2.0)",
}
_PASSAGES = "id, question, answers, contexts [{title, text, supporting}]"
_FIELDS = {
    "hotpotqa": _PASSAGES,
    "musique": _PASSAGES,
    "squad2": "id, title, question, answers, impossible, context",
}


def read_passages(
    name: str, data_dir: Path | None, stems: Mapping[str, str]
) -> tuple[Rows, str]:
    """Rows of a data set's files by part, prepared once, and the rows' digest.

    stems: the file's name without suffix by part. Rows hold text: id, question, and as
    JSON answers (empty: not answerable) and paragraphs [{title, text, maybe
    supporting}].

    Raises TaskError on an absent file and on a row of another form.
    """
    files = {}
    for part, stem in stems.items():
        path = None if data_dir is None else find_file(data_dir, name, stem)
        if path is None:
            place = Path("DIR") if data_dir is None else data_dir
            got = "no --data-dir" if data_dir is None else f"no {stem}.jsonl in {place}"
            raise TaskError(
                f"{name}: expected its data, got {got}; take it from {ORIGINS[name]}, "
                f"write one JSON object a line with {_FIELDS[name]} into "
                f"{place / name}/{stem}.jsonl and pass --data-dir {place}"
            )
        files[part] = path
    from metaharness.tasks import builders

    builder, flat = {
        "hotpotqa": (builders.MetaharnessHotpotqa, _flat_passages),
        "musique": (builders.MetaharnessMusique, _flat_passages),
        "squad2": (builders.MetaharnessSquad2, _flat_squad2),
    }[name]
    with tempfile.TemporaryDirectory() as folder:
        flattened = {
            part: _flatten(path, Path(folder) / f"{part}.jsonl", flat)
            for part, path in files.items()
        }
        return prepare_files(name, builder, flattened)


def _flatten(
    path: Path, target: Path, flat: Callable[[Path, int, Any], dict[str, str]]
) -> Path:
    """A copy of a file in which every field is text, nested ones as JSON."""
    seen: set[str] = set()
    with open(target, "w", encoding="utf-8") as lines:
        for number, row in read_rows(path):
            fields = flat(path, number, row)
            if fields["id"] in seen:
                got = f"{fields['id']!r} again"
                raise _refusal(path, number, "an id of its own", got)
            seen.add(fields["id"])
            lines.write(json.dumps(fields) + "\n")
    return target


def _flat_passages(path: Path, number: int, row: dict[str, Any]) -> dict[str, str]:
    if not _texts(row.get("answers")):
        raise _refusal(path, number, "a list of texts in 'answers'", row.get("answers"))
    contexts = row.get("contexts")
    if not isinstance(contexts, list) or not contexts:
        raise _refusal(path, number, "a list of paragraphs in 'contexts'", contexts)
    paragraphs = []
    for paragraph in contexts:
        if not isinstance(paragraph, dict) or not _texts(
            [paragraph.get("title"), paragraph.get("text")]
        ):
            raise _refusal(path, number, "title and text in each paragraph", paragraph)
        supporting = paragraph.get("supporting") is True
        kept = {"title": paragraph["title"], "text": paragraph["text"]}
        paragraphs.append(kept | {"supporting": supporting})
    return {
        "id": text_field(path, number, row, "id"),
        "question": text_field(path, number, row, "question"),
        "answers": json.dumps(row["answers"]),
        "paragraphs": json.dumps(paragraphs),
    }


def _flat_squad2(path: Path, number: int, row: dict[str, Any]) -> dict[str, str]:
    answers, impossible = row.get("answers"), row.get("impossible")
    if not isinstance(impossible, bool):
        raise _refusal(path, number, "true or false in 'impossible'", impossible)
    if answers != [] if impossible else not _texts(answers):
        what = "no answers" if impossible else "a list of texts in 'answers'"
        raise _refusal(path, number, what, answers)
    title = text_field(path, number, row, "title").replace("_", " ")
    context = text_field(path, number, row, "context")
    return {
        "id": text_field(path, number, row, "id"),
        "question": text_field(path, number, row, "question"),
        "answers": json.dumps(answers),
        "paragraphs": json.dumps([{"title": title, "text": context}]),
    }


def _texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(text, str) and text.strip() for text in value)
    )


def _refusal(path: Path, number: int, expected: str, got: Any) -> TaskError:
    shown = got if isinstance(got, str) else json.dumps(got)
    return TaskError(
        f"{path}:{number}: expected {expected}, got {shown[:60]}; fix or remove the "
        "line."
    )
