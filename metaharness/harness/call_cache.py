"""Model calls on disk: an identical request is never run twice.

Identical: the same weights, tokens, limits, stop texts, temperature and, where it is
sampled, the same seed. Nothing else is ever served from here.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from metaharness.errors import RunError
from metaharness.model.request import Completion, Request

FILE = "calls.sqlite"


class CallCache:
    """A file of requests and their completions. A context manager.

    Each batch is written as a whole or not at all; several processes may share it.
    """

    def __init__(self, path: Path) -> None:
        """Raises RunError where the file is none of ours."""
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file = sqlite3.connect(self._path, timeout=60.0)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, value TEXT)"
            )
            self._file.commit()
        except sqlite3.DatabaseError as error:
            raise RunError(
                f"{self._path}: expected a cache of calls, got {error}; remove the "
                "file: it only saves time."
            ) from error

    def find(self, digest: str, requests: Sequence[Request]) -> list[Completion | None]:
        """The stored completion of each request to the weights of this digest."""
        out: list[Completion | None] = []
        for request in requests:
            row = self._file.execute(
                "SELECT value FROM calls WHERE key = ?", (call_key(digest, request),)
            ).fetchone()
            out.append(None if row is None else _completion(row[0]))
        return out

    def store(self, digest: str, pairs: Iterable[tuple[Request, Completion]]) -> None:
        """Keep what was written; a request that is there already stays as it is."""
        rows = [(call_key(digest, r), json.dumps(list(c))) for r, c in pairs]
        with self._file:
            self._file.executemany("INSERT OR IGNORE INTO calls VALUES (?, ?)", rows)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "CallCache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call_key(digest: str, request: Request) -> str:
    """sha256 of everything that decides what is written."""
    sampled = request.temperature > 0
    identity = [
        digest,
        request.prefix,
        request.question,
        request.max_new_tokens,
        request.stops,
        float(request.temperature),
        request.seed if sampled else 0,
        request.options,
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _completion(text: str) -> Completion:
    *fields, options = json.loads(text)
    return Completion(*fields, tuple(options))
