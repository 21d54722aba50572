"""The numbers of one cell, from its evaluation."""

from typing import Any

import numpy as np

from metaharness import keys
from metaharness.stats import paired_difference
from metaharness.train.evaluate import Evaluation


def summary(result: Evaluation, method: str) -> dict[str, Any]:
    """What a cell's row shows of a method, in an evaluation of one task.

    measure: "exact match" (share of items) where rewards are all or nothing, else
    "reward" (in [0, 1], F1 say) or, where nothing grades, "nats" of the gold answer;
    score: its mean with a 95% interval; exact_match: share of items with the full
    reward; sd: of the harnesses' means, None for one; calls, tokens: of the method's
    episodes, also of those that an earlier session ran (of the whole evaluation where
    nothing grades).
    """
    (compared,) = result.compared
    row = next(row for row in result.scores if row.method == method)
    places = compared.members[method]
    measure, score, sd = "nats", row.loss, row.spread
    calls, tokens = result.counts.lm_calls, result.counts.token_forwards
    num_samples = 1
    if compared.grades is not None:
        num_samples = len(compared.grades.traces[0][0])
        rewards = compared.scores.reward[places][:, compared.answered]
        exact = num_samples == 1 and np.isin(rewards, (0.0, 1.0)).all()
        measure = "exact match" if exact else "reward"
        score = row.exact_match if exact else row.reward
        means = rewards.mean(axis=1)
        sd = float(np.std(means, ddof=1)) if len(means) > 1 else None
        traces = [t for h in places for own in compared.grades.traces[h] for t in own]
        calls = sum(len(trace.steps) for trace in traces)
        tokens = sum(trace.tokens for trace in traces)
    return {
        "measure": measure,
        "score": score,
        "exact_match": row.exact_match,
        "loss": row.loss,
        "sd": sd,
        "num_harnesses": len(places),
        "num_items": row.num_items,
        "num_episodes": len(places) * row.num_items * num_samples,
        "calls": calls,
        "tokens": tokens,
    }


def over(result: Evaluation, method: str, other: str, seed: int) -> Any:
    """Reward (or, where nothing grades, nats saved) of a method over another one,
    paired by item, with a 95% interval."""
    (compared,) = result.compared
    table = -compared.scores.nats
    if compared.grades is not None:
        table = compared.scores.reward[:, compared.answered]
    one, two = (table[compared.members[m]].mean(axis=0) for m in (method, other))
    rng = keys.host_generator(seed, stage="test", step=0, purpose="bootstrap")
    return paired_difference(one, two, rng=rng)
