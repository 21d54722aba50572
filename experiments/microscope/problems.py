"""Problems whose exact gradient is known: every outcome's loss is in a table.

A problem holds several random instances of one kind, stacked along the first axis.
Estimators that learn from values alone look losses up; estimators with a path, and
slopes at a probe, read ``soft``, which agrees with the table on hard choices.
"""

import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from estimators import Family
from experiments.landscape_file import load_landscape

HIDDEN = 16
"""Units of the tanh network."""


class Problem(NamedTuple):
    """Instances of one kind of problem.

    Attributes:
      name: as in results.
      about: one sentence for the report.
      family: of the choice.
      losses: float32 `[instance, outcome]`, outcomes in the order of
        ``family.enumerate()``.
      logits: float32 `[instance, pool]`, where gradients are measured.
      soft: (params of one instance, weights `[..., (k,) pool]`) -> loss `[...]`, or
        None where a loss at soft weights is not known.
      params: pytree with a leading instance axis.
      costly: whether ``soft`` runs a model: members that differentiate it are measured
        over fewer steps.
    """

    name: str
    about: str
    family: Family
    losses: np.ndarray
    logits: np.ndarray
    soft: Callable[[Any, jax.Array], jax.Array] | None = None
    params: Any = None
    costly: bool = False


class Toy(NamedTuple):
    """A loss ``linear . w + square |w - centre|^2 + network softplus(...)``.

    One function for all toys: an estimator then compiles once for a family. The network
    is ``softplus(out . tanh(into @ w + shift))``; w is flattened.

    Attributes:
      linear, centre: float32 `[features]`.
      square, network: scalars, the share of each term.
      into: `[HIDDEN, features]`; shift, out: `[HIDDEN]`.
    """

    linear: Any
    centre: Any
    square: Any
    network: Any
    into: Any
    shift: Any
    out: Any


def toy_loss(toy: Toy, weights: jax.Array, num_axes: int) -> jax.Array:
    """Loss at weights whose last ``num_axes`` axes are one choice."""
    lead = weights.shape[: weights.ndim - num_axes]
    flat = weights.reshape(*lead, -1)
    hidden = jnp.tanh(flat @ toy.into.T + toy.shift)
    return (
        flat @ toy.linear
        + toy.square * jnp.sum((flat - toy.centre) ** 2, axis=-1)
        + toy.network * jax.nn.softplus(hidden @ toy.out)
    )


def _one_axis(toy: Toy, weights: jax.Array) -> jax.Array:
    return toy_loss(toy, weights, 1)


def _two_axes(toy: Toy, weights: jax.Array) -> jax.Array:
    return toy_loss(toy, weights, 2)


def table(family: Family, instances: int, rng: np.random.Generator) -> Problem:
    """Random losses, one per candidate, read linearly between the vertices."""
    toys = _toys(family, instances, linear=rng.normal(size=(instances, family.n)))
    return _toy_problem(
        "table", "Independent standard normal losses.", family, toys, rng
    )


def quadratic(family: Family, instances: int, rng: np.random.Generator) -> Problem:
    """``sum (z - b)^2`` with b = |standard normal|."""
    centre = np.abs(rng.normal(size=(instances, family.n)))
    toys = _toys(family, instances, centre=centre, square=np.ones(instances))
    about = "sum (z - b)^2, b the size of a standard normal."
    return _toy_problem("quadratic", about, family, toys, rng)


def tanh_network(family: Family, instances: int, rng: np.random.Generator) -> Problem:
    """softplus of a tanh network; a ranking's places have weights of their own."""
    size = int(np.prod(family.weights_shape))
    toys = _toys(
        family,
        instances,
        network=np.ones(instances),
        into=rng.normal(size=(instances, HIDDEN, size)),
        shift=rng.normal(size=(instances, HIDDEN)),
        out=rng.normal(size=(instances, HIDDEN)),
    )
    about = f"softplus of a network of {HIDDEN} tanh units, standard normal weights."
    return _toy_problem("tanh_network", about, family, toys, rng)


def bernoulli(target: float, instances: int, rng: np.random.Generator) -> Problem:
    """``(b - target)^2`` of one bit, as 1 of 2 whose second weight is the bit."""
    family = Family("categorical", 2)
    centre = np.tile([1 - target, target], (instances, 1))
    # both weights move together, so each carries half of the square
    toys = _toys(family, instances, centre=centre, square=np.full(instances, 0.5))
    about = f"(b - {target:g})^2 of one bit."
    return _toy_problem("bernoulli", about, family, toys, rng)


ONE, FEW = Family("categorical", 8), Family("subset", 10, 5)
TOYS: dict[str, Callable[[int, np.random.Generator], Problem]] = {
    "table_1_of_8": partial(table, ONE),
    "quadratic_1_of_8": partial(quadratic, ONE),
    "tanh_network_1_of_8": partial(tanh_network, ONE),
    "bernoulli": partial(bernoulli, 0.45),
    "quadratic_5_of_10": partial(quadratic, FEW),
    "tanh_network_5_of_10": partial(tanh_network, FEW),
    "tanh_network_3_of_16": partial(tanh_network, Family("subset", 16, 3)),
    "tanh_network_ordered_3_of_6": partial(tanh_network, Family("ranking", 6, 3)),
}
"""Name -> (instances, generator) -> problem."""


def toy_problem(name: str, instances: int, seed: int) -> Problem:
    """The toy of this name; its numbers depend on no other toy."""
    rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
    return TOYS[name](instances, rng)._replace(name=name)


def landscape_problem(path: Path, instances: int, seed: int) -> Problem:
    """Measured losses of real harnesses: exemplars in order, under one template each.

    An instance is a template; they repeat where the file holds fewer. Nothing is known
    at soft weights.

    Args:
      path: of a landscape file.
      instances: as of the other problems.
      seed: of the logits.
    """
    landscape = load_landscape(path)
    templates, shots = (landscape.families[slot] for slot in ("template", "exemplars"))
    family = Family("ranking", shots.n, shots.k)
    outcomes = np.asarray(family.enumerate())
    losses = np.stack(
        [
            landscape.mean_loss(np.full(len(outcomes), number % templates.n), outcomes)
            for number in range(instances)
        ]
    )
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(instances, family.n)).astype(np.float32)
    about = (
        f"Measured losses of {family.k} of {family.n} exemplars in order, mean over "
        f"{landscape.num_items} items; each instance is one of {templates.n} templates."
    )
    return Problem("landscape", about, family, losses.astype(np.float32), logits)


def lookup(family: Family) -> Callable[[jax.Array], jax.Array]:
    """outcomes int32 `[..., k]` -> place in ``family.enumerate()``, int32 `[...]`."""
    if family.kind == "categorical":
        return lambda outcomes: outcomes[..., 0]
    powers = family.n ** np.arange(family.k)
    if family.kind == "subset":
        powers = 2 ** np.arange(family.n)
    size = 2**family.n if family.kind == "subset" else family.n**family.k
    if size > 2**22:
        raise ValueError(
            f"problem of {family.k} of {family.n}: its lookup has {size} entries, at "
            f"most {2**22}; use a smaller pool."
        )

    def code(outcomes: Any, powers: Any) -> Any:
        """A number for each outcome; the order in a subset does not matter."""
        if family.kind == "subset":
            return powers[outcomes].sum(-1)
        return (outcomes * powers).sum(-1)

    places = np.zeros(size, np.int32)
    outcomes = np.asarray(family.enumerate())
    places[code(outcomes, powers)] = np.arange(len(outcomes))
    return lambda rows: jnp.asarray(places)[
        code(rows, jnp.asarray(powers.astype(np.int32)))
    ]


def expected_loss(family: Family, logits: jax.Array, losses: jax.Array) -> jax.Array:
    """Exact expectation of one instance; the same constant off all losses is no harm.

    Args:
      logits: float32 `[pool]`.
      losses: float32 `[outcome]`.
    """
    outcomes = jnp.asarray(family.enumerate())
    mean = jnp.mean(losses)
    chance = jnp.exp(family.distribution(logits).log_prob(outcomes))
    return chance @ (losses - mean) + mean


def _toys(family: Family, instances: int, **parts: np.ndarray) -> Toy:
    size = int(np.prod(family.weights_shape))
    zeros = {
        "linear": (size,),
        "centre": (size,),
        "square": (),
        "network": (),
        "into": (HIDDEN, size),
        "shift": (HIDDEN,),
        "out": (HIDDEN,),
    }
    return Toy(
        **{
            name: np.asarray(parts.get(name, np.zeros((instances, *shape))), np.float32)
            for name, shape in zeros.items()
        }
    )


def _toy_problem(
    name: str, about: str, family: Family, toys: Toy, rng: np.random.Generator
) -> Problem:
    soft = _two_axes if family.kind == "ranking" else _one_axis
    hard = family.weights(jnp.asarray(family.enumerate()))
    losses = np.asarray(jax.jit(jax.vmap(soft, (0, None)))(toys, hard))
    logits = rng.normal(size=(len(losses), family.n)).astype(np.float32)
    return Problem(name, about, family, losses, logits, soft, toys)
