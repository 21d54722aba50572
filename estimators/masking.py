"""Excluded candidates: the one constant, and logits checked on entry."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np

EXCLUDED = -1e30
"""Logit of an excluded candidate: finite, so that no gradient is nan, and so low that
its probability underflows to exactly 0 in float32 at any temperature in use."""


def check_allowed(mask: jax.Array | np.ndarray, take: int, name: str) -> None:
    """Refuse a mask that leaves fewer than ``take`` candidates.

    Args:
      mask: bool `[..., pool]`, True means allowed. A traced mask cannot be read and
        passes.
      take: candidates that an outcome holds.
      name: distribution or slot, for the message.

    Raises:
      ValueError: some row of the mask allows fewer than ``take`` candidates.
    """
    if isinstance(mask, jax.core.Tracer):
        return
    fewest = int(np.asarray(mask).sum(-1).min())
    if fewest < take:
        raise ValueError(
            f"{name}: takes {take} but the mask allows only {fewest} candidates; "
            "allow more candidates or take fewer."
        )


def check_outcomes(value: jax.Array, take: int, name: str) -> None:
    """Refuse outcomes that are not int `[..., take]`.

    Raises:
      ValueError: another dtype or last axis.
    """
    if not jnp.issubdtype(value.dtype, jnp.integer) or value.shape[-1:] != (take,):
        raise ValueError(
            f"{name}: outcomes are {value.dtype} {list(value.shape)}; "
            f"give int [..., {take}]."
        )


def check_comparable(one: distrax.Distribution, other: distrax.Distribution) -> None:
    """Refuse a divergence between laws over different outcomes.

    Raises:
      ValueError: another family, pool size or number taken.
    """
    if type(one) is not type(other):
        names = f"{type(one).__name__} from {type(other).__name__}"
        raise ValueError(f"divergence of {names}; compare laws of one family.")
    mine, others = (
        f"{law.event_shape[0]} of {law.num_candidates}" for law in (one, other)
    )
    if mine != others:
        raise ValueError(
            f"divergence of {type(one).__name__} {mine} from {others}; compare laws of "
            "one pool size and number taken."
        )


def masked_logits(
    logits: jax.Array, mask: jax.Array | None, *, take: int, name: str
) -> tuple[jax.Array, jax.Array]:
    """Logits in at least float32, largest 0, excluded ones at ``EXCLUDED``.

    The shift changes no probability and keeps digits when logits are large; it carries
    no gradient. Apply a temperature before, not after.

    Args:
      logits: real `[..., pool]`.
      mask: bool `[..., pool]`, True means allowed; None allows all.
      take: candidates that an outcome holds.
      name: distribution, for messages.

    Returns:
      Logits and mask, both `[..., pool]`, broadcast to one shape.

    Raises:
      ValueError: wrong rank, pool size or dtype, or ``take`` above the allowed
        candidates.
    """
    logits = jnp.asarray(logits)
    if logits.ndim < 1:
        raise ValueError(f"{name}: logits are a scalar; give shape [..., pool].")
    pool = logits.shape[-1]
    if not 1 <= take <= pool:
        raise ValueError(
            f"{name}: takes {take} of a pool of {pool}; take between 1 and {pool}."
        )
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    if mask is None:
        mask = np.ones((pool,), bool)
    if mask.dtype != bool or mask.ndim < 1 or mask.shape[-1] != pool:
        raise ValueError(
            f"{name}: mask is {mask.dtype} {list(mask.shape)} for logits "
            f"{list(logits.shape)}; give bool [..., {pool}], True means allowed."
        )
    check_allowed(mask, take, name)
    shape = jnp.broadcast_shapes(logits.shape, mask.shape)
    logits, mask = jnp.broadcast_to(logits, shape), jnp.broadcast_to(mask, shape)
    top = jnp.max(jnp.where(mask, logits, EXCLUDED), axis=-1, keepdims=True)
    return jnp.where(mask, logits - jax.lax.stop_gradient(top), EXCLUDED), mask
