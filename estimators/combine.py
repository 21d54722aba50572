"""The joint estimator: one evaluation of a harness serves every slot.

Row s of every slot forms harness s. Each slot conditions on the others' draws, so the
expectation of its own term is the gradient of the joint expected loss in its logits.

Enumerating slots (``exact``) are treated in one of two ways:
  stratified: the rows are split over the M joint outcomes of the enumerating slots, as
    evenly as they go; coef_s = p_t / S_t for the S_t rows of outcome t, differentiable
    in the logits; leave-one-out means stay within the stratum. Unbiased for every slot
    at no extra rows: given t, the other slots' rows are independent draws of their own
    laws.
  crossed: every outcome is paired with every row, M * S rows, coef = p_t / S. The other
    slots' losses are first averaged over t.

One slot may weight its rows (``unordered_set``, ``sum_and_sample``); its coefficients
c_s then take the place of 1 / S, and its rows are never split into strata. Two such
slots are refused: row by row their weights are not independent.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from estimators.family import Family
from estimators.interface import PATH, Credit, Draw, Estimator, Spec, loss_of
from estimators.outcomes import check_countable
from estimators.rows import at_least_float32, sampled, shuffle_places


def slot_key(key: jax.Array, slot: str) -> jax.Array:
    """The key of a slot, folded by name: adding a slot moves no other's stream."""
    return jax.random.fold_in(key, zlib.crc32(slot.encode()))


def combine(
    parts: Mapping[str, tuple[Family, Estimator]],
    *,
    enumeration: str = "stratified",
    learns_from: Mapping[str, str] | None = None,
    allow_soft_reward: bool = False,
) -> Estimator:
    """Joint estimator over named slots; all arguments are dicts by slot.

    ``draw.outcomes`` and ``draw.weights`` are dicts slot -> `[rows, ...]`,
    ``draw.coef`` is one array `[rows]` that sums to 1; ``draw.probe`` is a dict slot ->
    array or None. Rows of one stratum are adjacent, in the order of the enumerated
    outcomes.

    Bias: none if every part is unbiased. Evaluations per step: the rows, and one
    relaxed pass if any part wants a slope.

    Args:
      parts: slot -> (family, estimator built for that family).
      enumeration: "stratified" or "crossed".
      learns_from: slot -> name of the loss it learns from; default each part's own
        ("likelihood").
      allow_soft_reward: let a slot with a soft forward value share its loss with a slot
        that learns from values alone. That value belongs to a harness that cannot be
        deployed.

    Raises:
      ValueError: no slots, a family that is not the estimator's, samplers that disagree
        on the number of rows, too few rows for the strata, or a soft value shared
        unasked.
    """
    _check_parts(parts, enumeration, learns_from)
    wanted = dict(learns_from or {})
    specs = {
        slot: part.spec._replace(learns_from=wanted.get(slot, part.spec.learns_from))
        for slot, (_, part) in parts.items()
    }
    _check_soft(specs, allow_soft_reward)
    counted = [slot for slot in parts if specs[slot].enumerates]
    drawn = [slot for slot in parts if not specs[slot].enumerates]
    samples = _common_rows({slot: specs[slot] for slot in drawn})
    num_strata = int(np.prod([specs[slot].rows for slot in counted], dtype=object))
    check_countable(num_strata, "combine, enumerated slots")
    crossed = enumeration == "crossed" and bool(drawn) and bool(counted)
    weighted = _weighted_slot(specs)
    if not drawn:
        samples = num_strata
    if not crossed:
        fewest = max((specs[slot].min_rows for slot in drawn), default=1)
        if counted and samples < fewest * num_strata:
            raise ValueError(
                f"combine: {samples} rows for {num_strata} strata of {fewest} each; "
                f"draw {fewest * num_strata} samples, or use enumeration='crossed'."
            )
    # Static layout: stratum of each row, and the row of the samplers' draws it uses.
    if crossed:
        stratum = np.repeat(np.arange(num_strata), samples)
        source = np.tile(np.arange(samples), num_strata)
    else:
        stratum = np.sort(np.arange(samples) % num_strata)
        source = np.arange(samples)
    num_rows = len(stratum)
    share = np.bincount(stratum, minlength=num_strata)[stratum]  # rows of its stratum
    sizes = [specs[slot].rows for slot in counted]
    which = dict(
        zip(counted, np.unravel_index(stratum, sizes) if counted else (), strict=True)
    )
    tables = {slot: parts[slot][0].enumerate() for slot in counted}

    def init(key: jax.Array, logits: Mapping[str, jax.Array]) -> dict[str, Any]:
        return {
            slot: part.init(slot_key(key, slot), logits[slot])
            for slot, (_, part) in parts.items()
        }

    def draw(
        key: jax.Array,
        logits: Mapping[str, jax.Array],
        state: Mapping[str, Any],
        mask: Mapping[str, jax.Array] | None = None,
    ) -> Draw:
        masks = mask or {}
        memo = {}
        for slot, (family, part) in parts.items():
            own = slot_key(key, slot)
            if slot in which:
                rows = jnp.asarray(tables[slot][which[slot]])
                rows = shuffle_places(own, family, rows)
                memo[slot] = sampled(family, rows, masks.get(slot))
            else:
                memo[slot] = part.draw(own, logits[slot], state[slot], masks.get(slot))
        return rebuild(logits, Draw(None, None, None, memo), state)

    def rebuild(
        logits: Mapping[str, jax.Array], draw: Draw, state: Mapping[str, Any]
    ) -> Draw:
        memo, outcomes, weights, probe = {}, {}, {}, {}
        log_prob = jnp.zeros((num_rows,), _dtype(logits))
        for slot, (family, part) in parts.items():
            own = at_least_float32(logits[slot])
            old = draw.memo[slot]
            if slot in which:
                law = family.distribution(own, old.memo.mask)
                log_prob = log_prob + law.log_prob(old.outcomes)
                new = old._replace(weights=family.weights(old.outcomes, own.dtype))
                outcomes[slot], weights[slot] = new.outcomes, new.weights
            else:
                new = part.rebuild(own, old, state[slot])
                group = jnp.asarray(np.zeros_like(source) if crossed else stratum)
                if not crossed:
                    new = new._replace(memo=new.memo._replace(group=group))
                outcomes[slot] = new.outcomes[source]
                weights[slot] = new.weights[source]
            memo[slot], probe[slot] = new, new.probe
        each = 1.0 / share
        if weighted is not None:
            each = memo[weighted].coef[source]
        return Draw(outcomes, weights, jnp.exp(log_prob) * each, memo, probe)

    def credit(
        logits: Mapping[str, jax.Array],
        draw: Draw,
        losses: jax.Array | Mapping[str, jax.Array],
        slope: Mapping[str, jax.Array] | None,
        state: Mapping[str, Any],
    ) -> Credit:
        coef = jax.lax.stop_gradient(draw.coef)
        surrogate = jnp.zeros((), _dtype(logits))
        new_state, metrics = {}, {}
        for slot, (_, part) in parts.items():
            own = loss_of(losses, specs[slot].learns_from)
            old = draw.memo[slot]
            if crossed and slot in drawn:
                shares = coef.reshape(num_strata, samples)
                counts = shares > 0
                own = jnp.where(counts, shares * own.reshape(counts.shape), 0.0).sum(0)
                total = shares.sum(0)  # of the row: the strata's probabilities sum to 1
                own = own / jnp.where(total > 0, total, 1.0)
                old = old._replace(coef=total)
            elif slot in drawn:
                old = old._replace(coef=coef)
            term = part.credit(
                logits[slot], old, own, (slope or {}).get(slot), state[slot]
            )
            surrogate += term.surrogate
            new_state[slot], metrics[slot] = term.state, term.metrics
        return Credit(surrogate, new_state, metrics)

    needs = frozenset().union(*(part.needs for part in specs.values()))
    spec = Spec(
        name=f"combine_{enumeration}",
        family={slot: family for slot, (family, _) in parts.items()},
        needs=needs,
        unbiased=all(part.unbiased for part in specs.values()),
        hard_forward=all(part.hard_forward for part in specs.values()),
        rows=num_rows,
        min_rows=1,
        evaluations=lambda n, k: num_rows + ("probe_slope" in needs),
        parts=specs,
    )
    return Estimator(init, draw, credit, spec, rebuild)


def _dtype(logits: Mapping[str, jax.Array]) -> jnp.dtype:
    return jnp.result_type(*(at_least_float32(own).dtype for own in logits.values()))


def _check_parts(
    parts: Mapping[str, tuple[Family, Estimator]],
    enumeration: str,
    learns_from: Mapping[str, str] | None,
) -> None:
    if not parts:
        raise ValueError("combine: no slots; give at least one.")
    if enumeration not in ("stratified", "crossed"):
        raise ValueError(
            f"combine: enumeration {enumeration!r} is unknown; "
            "use 'stratified' or 'crossed'."
        )
    unknown = sorted(set(learns_from or {}) - set(parts))
    if unknown:
        raise ValueError(
            f"combine: learns_from names {unknown}, slots are {sorted(parts)}."
        )
    for slot, (family, part) in parts.items():
        if part.spec.parts is not None:
            raise ValueError(
                f"combine: slot {slot!r} holds a joint estimator; flatten."
            )
        if part.spec.family != family:
            raise ValueError(
                f"combine: slot {slot!r} is {family} but its estimator was built for "
                f"{part.spec.family}; build it for the slot's family."
            )


def _weighted_slot(specs: Mapping[str, Spec]) -> str | None:
    slots = [slot for slot, spec in specs.items() if spec.weighted]
    if len(slots) > 1:
        raise ValueError(
            f"combine: slots {slots} all weight their rows; give all but one of them "
            "an estimator with equal weights, such as reinforce."
        )
    return slots[0] if slots else None


def _check_soft(specs: Mapping[str, Spec], allowed: bool) -> None:
    soft = [slot for slot, spec in specs.items() if not spec.hard_forward]
    for slot in soft:
        for other, spec in specs.items():
            shared = spec.learns_from == specs[slot].learns_from
            if PATH not in spec.needs and shared and not allowed:
                raise ValueError(
                    f"combine: slot {slot!r} ({specs[slot].name}) has a soft forward "
                    f"value and slot {other!r} ({spec.name}) would learn from it; use "
                    "a hard estimator, another loss, or allow_soft_reward=True."
                )


def _common_rows(specs: Mapping[str, Spec]) -> int:
    rows = {slot: spec.rows for slot, spec in specs.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(f"combine: slots draw {rows} rows; give all the same samples.")
    return next(iter(rows.values()), 1)
