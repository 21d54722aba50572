"""Sentences of the report, each computed from the rows of the results."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.microscope import polynomial
from experiments.microscope.figures import is_biased

Row = dict[str, Any]
_STUCK = 0.01
"""A bit's expected loss this far above the floor, where the exact gradient is below."""


def claims(rows: Sequence[Row]) -> list[str]:
    """All sentences; rows may be few, of any problems."""
    return [text for texts in claims_by_topic(rows).values() for text in texts]


def claims_by_topic(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Topic -> its sentences; topics without any are left out."""
    failed = [row for row in rows if "error" in row]
    good = [row for row in rows if "error" not in row]
    bits = [row for row in good if row["problem"] == "polynomial"]
    cells = [row for row in good if row["problem"] != "polynomial"]
    odd = [row for row in cells if row["relative_variance"] is None]
    cells = [row for row in cells if row["relative_variance"] is not None]
    found = {
        "Failures": _failures(failed, odd),
        "Bias": [*_unbiased(cells), *_biased(cells)],
        "Error at equal cost": _cheapest(cells),
        "Learning": _fastest(cells),
        "What would be deployed": _deployed(cells),
        "Temperature": _temperature(cells),
        "Polynomial programming": _bits(bits),
    }
    return {topic: texts for topic, texts in found.items() if texts}


def by_problem(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Problem -> its rows, in the order of first appearance."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["problem"], []).append(row)
    return found


def _failures(failed: Sequence[Row], odd: Sequence[Row]) -> list[str]:
    sentences = [
        f"{row['estimator']} could not be measured on {row['problem']}: {row['error']}"
        for row in failed
    ]
    return sentences + [
        f"{row['estimator']} gives estimates that are not finite on {row['problem']}."
        for row in odd
    ]


def _unbiased(cells: Sequence[Row]) -> list[str]:
    stated = [row for row in cells if row["unbiased"]]
    if not stated:
        return []
    wrong = [row for row in stated if is_biased(row)]
    if not wrong:
        return [
            f"No estimator that states to be unbiased shows a bias above its "
            f"Monte-Carlo floor: {len(stated)} measurements on "
            f"{len(by_problem(stated))} problems."
        ]
    return [
        f"{row['estimator']} states to be unbiased, yet its relative bias on "
        f"{row['problem']} is {row['relative_bias']:.2g}, above its floor of "
        f"{row['bias_floor']:.2g}."
        for row in wrong
    ]


def _biased(cells: Sequence[Row]) -> list[str]:
    sentences = []
    for name in dict.fromkeys(row["estimator"] for row in cells if not row["unbiased"]):
        own = [row for row in cells if row["estimator"] == name]
        seen = [row for row in own if is_biased(row)]
        if not seen:
            sentences.append(
                f"{name} shows no bias above its floor on {_problems(len(own))}."
            )
            continue
        worst = max(seen, key=lambda row: row["relative_bias"])
        sentences.append(
            f"{name} has a relative bias above its floor on {len(seen)} of "
            f"{_problems(len(own))}; the largest is {worst['relative_bias']:.2g} "
            f"(floor {worst['bias_floor']:.2g}) on {worst['problem']}."
        )
    return sentences


def _cheapest(cells: Sequence[Row]) -> list[str]:
    sentences = []
    for problem, rows in by_problem(cells).items():
        sampled = [row for row in rows if row["member"] != "exact"]
        fair = [row for row in sampled if row["unbiased"]]
        if fair:
            best = min(fair, key=lambda row: row["variance_x_cost"])
            sentences.append(
                f"On {problem} the lowest variance x cost of the unbiased sampling "
                f"estimators is that of {best['estimator']}: "
                f"{best['variance_x_cost']:.3g}."
            )
        if sampled:
            best = min(sampled, key=lambda row: row["error_x_cost"])
            sentences.append(
                f"On {problem} the lowest squared error x cost, bias included, is that "
                f"of {best['estimator']}: {best['error_x_cost']:.3g} (cosine of one "
                f"step {best['cosine']:.2f})."
            )
    return sentences


def _fastest(cells: Sequence[Row]) -> list[str]:
    sentences = []
    for problem, rows in by_problem(cells).items():
        there = [row for row in rows if row["evaluations_to_1_percent"] is not None]
        if not there:
            sentences.append(
                f"On {problem} no estimator brings half of its runs within 1 % of the "
                "optimum."
            )
            continue
        best = min(there, key=lambda row: row["evaluations_to_1_percent"])
        sentences.append(
            f"On {problem} {best['estimator']} is within 1 % of the optimum after the "
            f"fewest evaluations (median {best['evaluations_to_1_percent']:.0f}); "
            f"{len(there)} of {len(rows)} estimators get there."
        )
    return sentences


def _deployed(cells: Sequence[Row]) -> list[str]:
    sentences = []
    for problem, rows in by_problem(cells).items():
        worst = max(rows, key=lambda row: row["mode_regret"])
        if worst["share_wrong_mode"] > 0:
            sentences.append(
                f"On {problem} the harness that {worst['estimator']} would deploy has "
                f"the largest regret: {worst['mode_regret']:.2g} of the gap at the "
                f"start, with a wrong choice in {worst['share_wrong_mode']:.0%} of "
                "the runs."
            )
        else:
            sentences.append(f"On {problem} every run deploys the best harness.")
    return sentences


def _temperature(cells: Sequence[Row]) -> list[str]:
    """One sentence for each estimator, over the problems where it was cooled."""
    ratios: dict[str, dict[str, float]] = {}
    ends: dict[str, tuple[float, float]] = {}
    for row in cells:
        swept = row.get("by_tau") or []
        swept = [one for one in swept if one["relative_variance"]]
        if len(swept) < 2:
            continue
        cold, warm = swept[0], swept[-1]
        ratio = cold["relative_variance"] / warm["relative_variance"]
        ratios.setdefault(row["estimator"], {})[row["problem"]] = ratio
        ends[row["estimator"]] = (warm["tau"], cold["tau"])
    sentences = []
    for name, own in ratios.items():
        least, most = min(own, key=own.get), max(own, key=own.get)
        warm, cold = ends[name]
        text = f"Cooled from tau {warm:g} to {cold:g}, {name} has {own[most]:.2g} times"
        text += f" the variance on {most}"
        if len(own) > 1:
            text += f", the most of {_problems(len(own))}, and {own[least]:.2g} times"
            text += f" on {least}, the least"
        sentences.append(f"{text}.")
    return sentences


def _bits(rows: Sequence[Row]) -> list[str]:
    known = [
        (row, one)
        for row in rows
        for one in row["powers"]
        if one["difference"] is not None
    ]
    sentences = []
    if known:
        far = [
            pair for pair in known if abs(pair[1]["difference"]) > polynomial.TOLERANCE
        ]
        row, one = max(known, key=lambda pair: abs(pair[1]["difference"]))
        sentences.append(
            f"Polynomial programming after {row['steps']} steps: "
            f"{len(known) - len(far)} of {len(known)} losses are within "
            f"{polynomial.TOLERANCE} of the reference; the largest difference is "
            f"{one['difference']:+.4f} ({row['estimator']}, power {one['power']:g})."
        )
    for row in rows:
        gaps = [one["loss"] - one["floor"] for one in row["powers"]]
        far = max(gaps)
        power = row["powers"][gaps.index(far)]["power"]
        state = "is still" if far > _STUCK else "comes within"
        where = f"{far:.4f} " + ("above" if far > _STUCK else "of")
        sentences.append(
            f"Polynomial programming: {row['estimator']} {state} {where} the least "
            f"expected loss after {row['steps']} steps (worst power {power:g})."
        )
    return sentences


def _problems(count: int) -> str:
    return f"{count} problem{'s' if count != 1 else ''}"
