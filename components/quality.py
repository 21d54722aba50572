"""Exemplar pools of mixed quality: a search must find the good ones by itself."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from components.exemplars import Exemplar

FORMATS = (
    "I think it might be {answer}, but please check that yourself.",
    'Sure! Here is the result: {"result": "{answer}"}',
    "*** {answer} ***",
    "The answer to this question is as follows.\n\n- {answer}",
)


def corrupt(
    exemplar: Exemplar,
    kind: str,
    others: Sequence[Exemplar],
    rng: np.random.Generator,
) -> Exemplar:
    """A bad copy of a right exemplar, with `kind` and a uid that say so.

    kind "wrong_answer": the answer of another exemplar, drawn among the `others` whose
    answer differs; "wrong_format": the right answer inside one of `FORMATS`.

    Raises ValueError when no other answer exists or the kind cannot be made.
    """
    if kind == "wrong_answer":
        own = exemplar.answer.strip().casefold()
        answers = sorted(
            {o.answer for o in others if o.answer.strip().casefold() != own}
        )
        if not answers:
            raise ValueError(
                f"exemplar {exemplar.uid!r}: expected another exemplar with another "
                f"answer, got none among {len(others)}; give more varied exemplars."
            )
        answer = answers[int(rng.integers(len(answers)))]
    elif kind == "wrong_format":
        frame = FORMATS[int(rng.integers(len(FORMATS)))]
        answer = frame.replace("{answer}", exemplar.answer)
    else:
        raise ValueError(
            f"corrupt: expected 'wrong_answer' or 'wrong_format', got {kind!r}; "
            "off-task exemplars are other tasks' items."
        )
    uid = f"{exemplar.uid}#{kind}"
    return replace(exemplar, uid=uid, answer=answer, kind=kind)


def mixed_pool(
    items: Sequence[Exemplar],
    num: int,
    *,
    rng: np.random.Generator,
    share_right: float = 0.5,
    off_task: Sequence[Exemplar] = (),
) -> tuple[Exemplar, ...]:
    """`num` exemplars, `share_right` of them right, the rest bad, in shuffled order.

    items: right exemplars of one task, at least `num` of them (each is used once, right
    or corrupted). The bad ones are split as evenly as possible over "wrong_answer",
    "wrong_format" and, where `off_task` exemplars of other tasks are given, "off_task".
    Bad kinds that the task cannot supply (a task with one single answer has no wrong
    one) are refused. Same arguments and generator state give the same pool.

    Raises ValueError.
    """
    if not 0.0 <= share_right <= 1.0:
        raise ValueError(
            f"mixed_pool: expected share_right in [0, 1], got {share_right}; "
            "give a fraction."
        )
    if not 1 <= num <= len(items):
        raise ValueError(
            f"mixed_pool: expected num between 1 and {len(items)} (the items given), "
            f"got {num}; give more items or ask for fewer."
        )
    num_right = round(share_right * num)
    chosen = [items[int(i)] for i in rng.permutation(len(items))[:num]]
    kinds = ["wrong_answer", "wrong_format"] + (["off_task"] if off_task else [])
    bad = [kinds[i % len(kinds)] for i in range(num - num_right)]
    if bad.count("off_task") > len(off_task):
        raise ValueError(
            f"mixed_pool: expected {bad.count('off_task')} off-task exemplars or more, "
            f"got {len(off_task)}; give more, or none."
        )
    strangers = iter([off_task[int(i)] for i in rng.permutation(len(off_task))])
    pool = chosen[:num_right]
    for exemplar, kind in zip(chosen[num_right:], bad, strict=True):
        if kind == "off_task":
            stranger = next(strangers)
            uid = f"{stranger.uid}#off_task"
            pool.append(replace(stranger, uid=uid, kind=kind))
        else:
            pool.append(corrupt(exemplar, kind, items, rng))
    return tuple(pool[int(i)] for i in rng.permutation(num))
