"""Every supported pair of estimator and family, and expectations without sampling.

An estimator's expectation is a finite sum: over all tuples of outcomes of its rows,
each weighted by its probability; noise is fixed, or put on a grid. No sampled mean can
see a bias of a few per cent at these variances; a sum sees one of 1e-10.

Each case is compiled once, as a batch of ``LANES`` independent gradients of which every
argument may differ; all of its contract tests use that one function.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import estimators as es
from estimators.linear_proxy import LinearProxyState
from estimators.proxy import ProxyState
from estimators.reinforce import ReinforceState
from estimators.relax import RelaxState
from estimators.replay import Replay
from estimators.window import Window

ORACLES = json.loads(
    (pathlib.Path(__file__).parents[1] / "data" / "choice_oracles.json").read_text()
)
LANES = 64

A4 = np.array([0.5, -1.0, 0.25, 2.0])
B4 = np.array(
    [
        [0, 0.3, -0.2, 0.1],
        [0.3, 0, 0.4, -0.5],
        [-0.2, 0.4, 0, 0.6],
        [0.1, -0.5, 0.6, 0],
    ]
)
A5 = np.array([0.7, -0.3, 1.1, 0.2, -0.9])
C5 = np.array([0.4, 0.1, -0.6, 0.9, 0.3])


def curved4(weights: jax.Array, params: Mapping[str, jax.Array]) -> jax.Array:
    cross = jnp.einsum("...i,ij,...j->...", weights, params["b"], weights)
    return jnp.exp(weights @ params["a"]) + jnp.tanh(cross + weights @ params["first"])


def curved5(weights: jax.Array, params: Mapping[str, jax.Array]) -> jax.Array:
    a, c = weights @ params["a"], weights @ params["c"]
    return a + 0.5 * c**2 + jnp.sin(a * c)


def order_loss(weights: jax.Array, params: Mapping[str, jax.Array]) -> jax.Array:
    places = weights @ params["a"] @ jnp.array([1.0, 2.0], weights.dtype)
    first, last = weights[..., 0, :], weights[..., -1, :]
    return places + 0.3 * jnp.einsum("...i,ij,...j->...", first, params["b"], last)


class Problem(NamedTuple):
    """A family with a loss whose exact gradient is stored."""

    family: es.Family
    phi: np.ndarray
    params: dict[str, np.ndarray]
    loss: Callable[..., jax.Array]
    oracle: dict[str, Any]


PROBLEMS = {
    "categorical": Problem(
        es.Family("categorical", 4),
        np.array(ORACLES["categorical_curved"]["phi"]),
        {"a": A4, "b": B4, "first": np.eye(4)[0]},
        curved4,
        ORACLES["categorical_curved"],
    ),
    "subset": Problem(
        es.Family("subset", 5, 2),
        np.array(ORACLES["subset_curved"]["phi"]),
        {"a": A5, "c": C5},
        curved5,
        ORACLES["subset_curved"],
    ),
    "ranking": Problem(
        es.Family("ranking", 4, 2),
        np.array(ORACLES["ordered_pairs"]["phi"]),
        {"a": A4, "b": B4},
        order_loss,
        ORACLES["ordered_pairs"],
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A member of the catalogue on one family, with few enough rows to enumerate."""

    name: str
    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        return "-".join([self.name, self.kind, *(f"{v}" for _, v in self.options)])

    @property
    def problem(self) -> Problem:
        return PROBLEMS[self.kind]

    def build(self) -> es.Estimator:
        return es.make(self.name, self.problem.family, dict(self.options))


def case_option(case: Case, name: str) -> Any:
    return dict(case.options)[name]


def _case(name: str, kind: str, **options: Any) -> Case:
    return Case(name, kind, tuple(options.items()))


KINDS = ("categorical", "subset", "ranking")
CASES = [
    *(_case("exact", kind) for kind in KINDS),
    *(_case("reinforce", kind, samples=2) for kind in KINDS),
    *(
        _case("reinforce", "categorical", samples=2, baseline=baseline)
        for baseline in ("none", "running_mean", "group_normalised")
    ),
    *(_case("linear_proxy", kind, samples=2, window=6, residual=1.0) for kind in KINDS),
    _case("linear_proxy", "subset", samples=2, window=6, residual=0.0),
    *(_case("unordered_set", kind, samples=2) for kind in ("categorical", "ranking")),
    _case("sum_and_sample", "categorical", samples=3, enumerated=1),
    *(_case("proxy", kind, samples=2, window=6, inner_steps=2) for kind in KINDS),
    _case("proxy", "subset", samples=2, window=6, inner_steps=2, residual=0.0),
    *(_case("relax", kind, samples=2) for kind in KINDS),
    _case("gumbel_softmax", "categorical", samples=2),
    _case("straight_through", "categorical", samples=2),
    _case("st_gumbel_softmax", "categorical", samples=2),
    _case("gumbel_rao", "categorical", samples=2, inner=3),
    _case("reinmax", "categorical", samples=2),
    _case("simple", "subset", samples=2),
    _case("perturbed_marginals", "subset", samples=2),
    *(_case("imle", kind, samples=2, step=2.0) for kind in ("categorical", "subset")),
    _case("soft_subset", "ranking", samples=2),
]
NOISY = {
    "relax",
    "gumbel_softmax",
    "st_gumbel_softmax",
    "gumbel_rao",
    "perturbed_marginals",
    "imle",
    "soft_subset",
}
"""Members that also draw continuous noise: no sum over outcomes is their mean."""


class Lane(NamedTuple):
    """Arguments of one gradient."""

    logits: Any
    outcomes: Any
    noise: Any
    mask: Any
    params: Any
    shift: Any
    slope: Any
    state: Any


def past_state(case: Case, estimator: es.Estimator) -> Any:
    """A state with a past: a running baseline, a full window, a network with weights.

    Losses and weights of the past are random: no test may pass because a fit is good.
    """
    family = case.problem.family
    with jax.enable_x64(True):
        state = estimator.init(jax.random.key(0), jnp.asarray(case.problem.phi))
        state = jax.tree.map(np.asarray, state)
    if isinstance(state, ReinforceState):
        return ReinforceState(np.int32(3), np.float64(0.7), np.float64(0.5))
    rng = np.random.default_rng(1)
    if isinstance(state, RelaxState | ProxyState):
        params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), state.params)
        state = state._replace(params=params, scale=np.float64(0.7), step=np.int32(3))
    if isinstance(state, RelaxState) or not isinstance(
        state, LinearProxyState | ProxyState
    ):
        return state
    rows = case_option(case, "window")
    outcomes = family.enumerate()[rng.integers(family.num_outcomes, size=rows)]
    features = np.asarray(family.weights(outcomes), float).reshape(rows, -1)
    step = np.arange(rows, dtype=np.int32) // 2
    if isinstance(state, ProxyState):
        replay = Replay(features, rng.normal(size=rows), np.ones(rows), 2 * step)
        return state._replace(replay=replay)
    window = Window(
        features - features.mean(0),
        rng.normal(size=rows),
        np.ones(rows),
        rng.dirichlet(np.ones(family.n), size=rows),
        step,
        step % 2,
    )
    return LinearProxyState(np.int32(3), window)


def in_float32(tree: Any) -> Any:
    """Float leaves as float32 arrays, the rest as they are."""

    def single(leaf: Any) -> jax.Array:
        leaf = np.asarray(leaf)
        return jnp.asarray(leaf, jnp.float32 if leaf.dtype == float else leaf.dtype)

    return jax.tree.map(single, tree)


def lane(case: Case, outcomes: np.ndarray | None = None) -> Lane:
    """The case at its stored logits; outcomes default to the first of the table."""
    estimator, problem = case.build(), case.problem
    family, rng = problem.family, np.random.default_rng(2)
    table, rows = family.enumerate(), estimator.spec.rows
    state = past_state(case, estimator)
    noise = None
    if case.name in NOISY:
        with jax.enable_x64(True):
            phi = jnp.asarray(problem.phi)
            drawn = estimator.draw(jax.random.key(5), phi, state)
        noise = np.asarray(drawn.memo.noise)
        outcomes = np.asarray(drawn.outcomes) if outcomes is None else outcomes
    if outcomes is None:
        outcomes = table if estimator.spec.enumerates else table[-rows:]
        if case.name == "sum_and_sample":
            outcomes = np.array([[2], [0], [3]])  # the likeliest first
    slope = None
    if "probe_slope" in estimator.spec.needs:
        slope = rng.normal(size=family.weights_shape)
    return Lane(
        problem.phi,
        np.asarray(outcomes),
        noise,
        np.ones(family.n, bool),
        problem.params,
        np.float64(0.0),
        slope,
        state,
    )


def one_gradient(
    estimator: es.Estimator, loss: Callable[..., jax.Array], lane: Lane
) -> jax.Array:
    """Gradient in the logits at one draw."""
    rows = lane.outcomes.shape[0]
    memo = es.Memo(lane.mask, jnp.zeros((rows,), jnp.int32), lane.noise)
    raw = es.Draw(lane.outcomes, None, None, memo)
    draw = estimator.rebuild(lane.logits, raw, lane.state)

    def objective(draw: es.Draw, theta: None) -> jax.Array:
        return loss(draw.weights, lane.params) + lane.shift

    losses, weights_grad, _ = es.evaluate(estimator, objective)(draw, None)
    told = es.tell(
        estimator, lane.logits, draw, losses, lane.state, lane.slope, weights_grad
    )
    return told.logits_grad


@functools.cache
def _compiled(case: Case) -> Callable[[Lane], jax.Array]:
    one = functools.partial(one_gradient, case.build(), case.problem.loss)
    return jax.jit(jax.vmap(one))


def gradients(case: Case, lanes: list[Lane]) -> np.ndarray:
    """Gradients of any number of lanes in float64, `[lane, pool]`."""
    found = []
    with jax.enable_x64(True):
        for start in range(0, len(lanes), LANES):
            part = lanes[start : start + LANES]
            full = part + [part[-1]] * (LANES - len(part))
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *full)
            found.append(np.asarray(_compiled(case)(stacked))[: len(part)])
    return np.concatenate(found)


def probabilities(family: es.Family, phi: np.ndarray) -> np.ndarray:
    """Of every outcome, in NumPy and by definition: nothing of the code under test."""
    weight = np.exp(phi)
    table = family.enumerate()
    if family.kind != "ranking":
        product = weight[table].prod(1)
        return product / product.sum()
    left = weight.sum() - np.cumsum(weight[table], 1) + weight[table]
    return (weight[table] / left).prod(1)


def all_tuples(case: Case) -> tuple[list[np.ndarray], np.ndarray]:
    """Every tuple of outcomes of the rows, `[rows, k]` each, and its probability."""
    spec, problem = case.build().spec, case.problem
    table = problem.family.enumerate()
    if spec.enumerates:
        return [table], np.ones(1)
    prob = probabilities(problem.family, problem.phi)
    if case.name == "unordered_set":  # distinct rows, one after the other
        tuples = list(itertools.permutations(range(len(table)), spec.rows))
        left = [1 - np.cumsum(prob[list(t)]) + prob[list(t)] for t in tuples]
        chance = [
            (prob[list(t)] / rest).prod() for t, rest in zip(tuples, left, strict=True)
        ]
        return [table[list(t)] for t in tuples], np.array(chance)
    if case.name == "sum_and_sample":  # the likeliest, and draws of the others
        top, rest = np.argmax(prob), np.delete(np.arange(len(table)), np.argmax(prob))
        tuples = [(top, *t) for t in itertools.product(rest, repeat=spec.rows - 1)]
        chance = [(prob[list(t[1:])] / prob[rest].sum()).prod() for t in tuples]
        return [table[list(t)] for t in tuples], np.array(chance)
    tuples = list(itertools.product(range(len(table)), repeat=spec.rows))
    return [table[list(t)] for t in tuples], np.array(
        [prob[list(t)].prod() for t in tuples]
    )


def expectation(case: Case, change: Callable[[Lane], Lane] | None = None) -> tuple:
    """Mean and total variance of the gradient over every tuple of outcomes."""
    tuples, prob = all_tuples(case)
    base = lane(case)
    base = base if change is None else change(base)
    grads = gradients(case, [base._replace(outcomes=outcomes) for outcomes in tuples])
    mean = prob @ grads
    return mean, prob @ (grads**2).sum(1) - mean @ mean
