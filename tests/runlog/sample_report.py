"""A report of realistic size and trouble, for the tests of the page and the table."""

import numpy as np

from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.report_data import (
    OVERALL,
    Attribution,
    Candidate,
    CellScore,
    Curve,
    Divergence,
    Effect,
    Note,
    Prompt,
    Report,
    ScoreRow,
    Series,
    SlotEffect,
    SlotReport,
    Span,
    TrustRow,
    budget_rows,
)
from metaharness.stats import Interval, mean_interval, paired_difference

TASKS = {"gsm8k": 21.0, "number_sequence": 6.3, "isomorphic_strings": 1.4}
KINDS = ("right", "wrong_answer", "wrong_format", "off_task")


def sample_report() -> Report:
    """Three tasks: learned well, learned a little, and not learned."""
    rng = np.random.default_rng(0)
    losses = {task: _losses(task, rng) for task in TASKS}
    losses[OVERALL] = {
        method: np.concatenate([losses[task][method] for task in TASKS], axis=-1)
        for method in losses["gsm8k"]
    }
    return Report(
        title="gsm8k, number_sequence, isomorphic_strings",
        model="smollm2-135m",
        command="metaharness train",
        seconds=291.4,
        notes=(
            Note(
                "Nothing learned on isomorphic_strings, because the losses of its"
                " harnesses differ by less than their standard error (0.04 nats)."
            ),
        ),
        scores=tuple(
            row for task in (OVERALL, *TASKS) for row in _rows(task, losses[task], rng)
        ),
        attribution=tuple(_attribution(task) for task in (*TASKS, OVERALL)),
        trust=(
            TrustRow("gsm8k", 0.86, 64, slope_fit=0.71, ridge_fit=0.78),
            TrustRow("number_sequence", 0.62, 64, slope_fit=0.44, ridge_fit=0.52),
            TrustRow("isomorphic_strings", 0.31, 12, slope_fit=-0.4, ridge_fit=0.12),
        ),
        curves=_curves(rng),
        slots=(
            _exemplars("gsm8k", rng, sharpness=6.0),
            _template("gsm8k"),
            _exemplars("isomorphic_strings", rng, sharpness=0.4),
        ),
        prompts=(
            Prompt("gsm8k", _prompt(), num_tokens=431, answer="#### 18"),
            Prompt("number_sequence", "2, 4, 6, ?\n", num_tokens=9, answer="8"),
        ),
        budget=budget_rows(_counter()),
        config={
            "seed": 0,
            "tasks": list(TASKS),
            "schedule": {"stages": [{"name": "search", "updates": 60}], "tau": 0.5},
        },
        provenance={
            "created": "2026-11-29T16:30:00+00:00",
            "device": "cpu",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "packages": {"jax": "0.10.2", "flax": "0.12.8"},
            "data": {"gsm8k": "sha256:ab12"},
        },
    )


def _losses(task, rng):
    items = TASKS[task] * rng.gamma(4, 0.25, size=48)
    gain = {"gsm8k": 0.12, "number_sequence": 0.05, "isomorphic_strings": 0.0}[task]

    def noisy(scale, shape=(48,)):
        return items * (scale + rng.normal(0, 0.03, size=shape))

    return {
        "zero_shot": noisy(1.22),
        "random": np.stack([noisy(1 + rng.normal(0, 0.04)) for _ in range(16)]),
        "best_random": noisy(1 - gain / 2),
        "mode": noisy(1 - gain),
        "sampled": np.stack([noisy(1 - 0.9 * gain) for _ in range(8)]),
    }


def _rows(task, losses, rng):
    for method, values in losses.items():
        interval = mean_interval(values, rng=rng, num_resamples=500)
        per_item = 9.0 if task == "gsm8k" else 3.0
        share = {"zero_shot": 0.02, "random": 0.06}.get(method, 0.125)
        yield ScoreRow(
            method=method,
            task=task,
            num_items=values.shape[-1],
            loss=interval,
            loss_per_token=Interval(*(part / per_item for part in interval)),
            exact_match=Interval(share, max(0, share - 0.06), share + 0.09),
            difference=None
            if method == "random"
            else paired_difference(
                values, losses["random"], rng=rng, num_resamples=500
            ),
            spread=float(values.mean(1).std()) if values.ndim == 2 else None,
            num_harnesses=14 if method == "best_random" else len(np.atleast_2d(values)),
            prompt_tokens=38.0 if method == "zero_shot" else 402.0,
            seconds=12.5,
        )


def _attribution(task):
    """Harness and weights both help and overlap; on the last task only weights do."""
    rng = np.random.default_rng(1)
    size = {**TASKS, OVERALL: 9.6}[task]
    num = 48 if task in TASKS else 144
    harness = 0.0 if task == "isomorphic_strings" else 0.14
    items = 1.2 * size * rng.gamma(4, 0.25, size=num)

    def losses(gain):
        return items * (1 - gain + rng.normal(0, 0.05, size=num))

    def interval(values):
        return mean_interval(values, rng=np.random.default_rng(0), num_resamples=500)

    cells = {
        ("base", "seed"): losses(0.0),
        ("base", "learned"): losses(harness),
        ("adapted", "seed"): losses(0.09),
        ("adapted", "learned"): losses(0.09 + 0.7 * harness),
    }
    start, phi, theta, both = cells.values()
    effects = {
        "harness_at_base": phi - start,
        "weights_at_seed": theta - start,
        "harness_against_weights": phi - theta,
        "harness_at_adapted": both - theta,
        "weights_at_learned": both - phi,
        "total": both - start,
        "interaction": both - phi - theta + start,
    }
    return Attribution(
        task=task,
        num_items=num,
        cells=tuple(
            CellScore(*cell, interval(nats), Interval(0.06, 0.02, 0.17))
            for cell, nats in cells.items()
        ),
        effects=tuple(
            Effect(name, interval(nats), Interval(0.04, -0.02, 0.1))
            for name, nats in effects.items()
        ),
        slots=(
            SlotEffect("exemplars", False, interval(both - theta), Interval(0, 0, 0)),
            SlotEffect("template", True, Interval(0.0, 0.0, 0.0)),
        ),
        divergence=Divergence(Interval(0.0412, 0.0305, 0.0531), num, 9 * num),
    )


def _curves(rng):
    steps = tuple(range(0, 90, 3))
    spans = (Span("search", 0, 60), Span("weights", 60, 90))

    def falling(start, stop):
        path = stop + (start - stop) * np.exp(-np.arange(30) / 8)
        return path + rng.normal(0, 0.02 * start, size=30)

    def line(name, start, stop, band=False):
        y = falling(start, stop)
        return Series(
            name,
            steps,
            tuple(y),
            tuple(y * 0.96) if band else None,
            tuple(y * 1.04) if band else None,
        )

    entropy = falling(1, 0.2)
    entropy[4] = np.nan
    return (
        Curve(
            "Loss of drawn harnesses",
            "nats per answer",
            tuple(line(task, size, 0.85 * size, True) for task, size in TASKS.items()),
            spans=spans,
        ),
        Curve(
            "Entropy of the exemplar slot",
            "share of its maximum",
            (Series("gsm8k", steps, tuple(entropy)),),
            spans=spans,
        ),
    )


def _exemplars(task, rng, sharpness):
    size, k = 24, 4
    quality = np.array([(2.0, 0.3, -0.5, -1.0)[i % 4] for i in range(size)])
    quality = quality + rng.normal(0, 0.5, size=size)
    rows = []
    for step in range(0, 91, 10):
        chances = k * _softmax(sharpness * quality * step / 90 / 3)
        for _ in range(20):
            chances = np.minimum(chances, 1)
            chances *= k / chances.sum()
        rows.append(tuple(np.minimum(chances, 1)))
    chosen = tuple(sorted(int(i) for i in np.argsort(rows[-1])[-k:]))
    return SlotReport(
        task=task,
        slot="exemplars",
        k=k,
        candidates=tuple(
            Candidate(f"{task}/{17 + 3 * i}", KINDS[i % 4], _exemplar(i))
            for i in range(size)
        ),
        steps=tuple(range(0, 91, 10)),
        probabilities=tuple(rows),
        chosen=chosen,
    )


def _template(task):
    rows = tuple(
        (c, 0.6 * (1 - c), 0.4 * (1 - c)) for c in np.linspace(1 / 3, 0.94, 10)
    )
    texts = ("{question}", "Question: {question}\nAnswer:", "Solve.\n{question}")
    return SlotReport(
        task=task,
        slot="template",
        k=1,
        candidates=tuple(
            Candidate(name, text=text)
            for name, text in zip(("plain", "question", "solve"), texts, strict=True)
        ),
        steps=tuple(range(0, 91, 10)),
        probabilities=rows,
        chosen=(0,),
    )


def _exemplar(i):
    return (
        f"A baker packs {i + 3} boxes with {2 * i + 5} rolls each and sells a third of"
        f" them for $2 apiece.\nHow much does she earn?\n#### {(i + 3) * (2 * i + 5)}"
    )


def _prompt():
    turns = "".join(
        f"<|im_start|>user\n{_exemplar(i)}<|im_end|>\n" for i in (0, 4, 8, 12)
    )
    return turns + "<|im_start|>user\nWhat is 9 + 9?<|im_end|>\n<|im_start|>assistant\n"


def _counter():
    now = [0.0]
    counter = BudgetCounter(clock=lambda: now[0])
    with counter.phase("prepare"):
        counter.add(lm_calls=96, token_forwards=9_120)
        now[0] += 30.2
    with counter.phase("train"):
        counter.add(lm_calls=720, token_forwards=61_344, backward_tokens=20_448)
        now[0] += 171.5
        with counter.phase("validation"):
            counter.add(lm_calls=192, token_forwards=14_208, padded_tokens=2_100)
            now[0] += 28.0
    with counter.phase("test"):
        counter.add(lm_calls=480, token_forwards=36_100, generated_tokens=1_920)
        now[0] += 61.7
    return counter


def _softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()
