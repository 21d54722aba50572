"""Token tables of a harness space: any harness's prompt is a gather on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness.errors import HarnessError
from metaharness.harness.render import Renderer
from metaharness.harness.slots import Harness


class PromptTable(NamedTuple):
    """Pieces of every prompt. A *style* is what templates with one cache key share.

    heads: int32 ``[style, head]``, right-padded; head_lengths: int32 ``[style]``.
    shots: int32 ``[style, candidate, time]``, right-padded; shot_lengths: int32
        ``[style, candidate]``.
    style_of: int32 ``[template]``.
    """

    heads: jax.Array
    head_lengths: jax.Array
    shots: jax.Array
    shot_lengths: jax.Array
    style_of: jax.Array


def build_prompt_table(
    harness: Harness, renderer: Renderer, *, max_shot_tokens: int | None = None
) -> PromptTable:
    """Tokenise every head and every candidate once for each style.

    Raises HarnessError naming the first exemplar over ``max_shot_tokens``.
    """
    styles: dict[tuple, int] = {}
    for template in harness.template.pool:
        styles.setdefault(template.cache_key, len(styles))
    leaders = {
        styles[template.cache_key]: template
        for template in reversed(harness.template.pool)
    }
    heads = [renderer.head(leaders[s]) for s in range(len(styles))]
    shots = [
        [renderer.shot(leaders[s], exemplar) for exemplar in harness.candidates]
        for s in range(len(styles))
    ]
    for row in shots:
        for exemplar, ids in zip(harness.candidates, row, strict=True):
            if max_shot_tokens is not None and len(ids) > max_shot_tokens:
                raise HarnessError(
                    f"exemplar {exemplar.uid!r}: expected at most {max_shot_tokens} "
                    f"tokens, got {len(ids)}; shorten or remove it"
                )
    width = max([1, *(len(ids) for row in shots for ids in row)])
    flat = [pad_tokens(row, width) for row in shots]
    return PromptTable(
        heads=jnp.asarray(pad_tokens(heads, max(map(len, heads)))),
        head_lengths=jnp.asarray([len(ids) for ids in heads], jnp.int32),
        shots=jnp.asarray(np.stack(flat)),
        shot_lengths=jnp.asarray(
            [[len(ids) for ids in row] for row in shots], jnp.int32
        ).reshape(len(styles), -1),
        style_of=jnp.asarray(
            [styles[t.cache_key] for t in harness.template.pool], jnp.int32
        ),
    )


def pad_tokens(rows: list[list[int]], width: int) -> np.ndarray:
    """Right-pad with 0: int32 ``[row, width]``."""
    out = np.zeros((len(rows), width), np.int32)
    for at, row in enumerate(rows):
        out[at, : len(row)] = row
    return out


def prefix_width(table: PromptTable, k: int) -> int:
    """Tokens of the longest prefix with ``k`` exemplars, over all styles."""
    lengths = np.sort(np.asarray(table.shot_lengths), axis=1)[:, ::-1][:, :k]
    return int((np.asarray(table.head_lengths) + lengths.sum(axis=1)).max())


def assemble_prefix(
    table: PromptTable, template: jax.Array, exemplars: jax.Array, *, width: int
) -> tuple[jax.Array, jax.Array]:
    """Head and exemplars of one harness, put together without gaps.

    Args:
        template: int32 scalar, template id.
        exemplars: int32 ``[k]``, candidate ids in prompt order (``k`` may be 0).
        width: tokens of the result; at least ``prefix_width``.

    Returns:
        tokens int32 ``[width]``, right-padded, and their number (int32 scalar).
    """
    style = table.style_of[template]
    lengths = jnp.concatenate(
        [table.head_lengths[style][None], table.shot_lengths[style][exemplars]]
    )
    ends = jnp.cumsum(lengths)
    place = jnp.arange(width)
    piece = jnp.searchsorted(ends, place, side="right")
    piece = jnp.minimum(piece, lengths.shape[0] - 1)
    offset = place - (ends - lengths)[piece]
    head = table.heads[style][jnp.minimum(offset, table.heads.shape[1] - 1)]
    if exemplars.shape[0]:
        candidate = exemplars[jnp.maximum(piece - 1, 0)]
        at = jnp.minimum(offset, table.shots.shape[2] - 1)
        tokens = jnp.where(piece == 0, head, table.shots[style, candidate, at])
    else:
        tokens = head
    return jnp.where(place < ends[-1], tokens, 0), ends[-1]
