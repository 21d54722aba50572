"""Many runs of one estimator at once, in one compiled program.

The same program measures gradients (learning rate 0: the logits stay) and learns
(Adam), because compiling costs more than running. Steps, temperature, learning rate,
logits and the problem's numbers are arguments: they compile nothing anew.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import estimators as es
from estimators import Family
from experiments.microscope.problems import Problem, expected_loss, lookup
from experiments.microscope.variants import Variant

RECORDS = 50
"""Logits are kept at this many evenly spaced steps of a run."""


class Sums(NamedTuple):
    """Totals over the measured steps of each chain; d is estimate less exact gradient.

    Attributes:
      error: `[instance, chain, pool]`, of d.
      square: `[instance, chain]`, of |d|^2.
      cosine: `[instance, chain]`; a zero estimate counts 0.
      descent: `[instance, chain]`, steps whose estimate descends: g . g* > 0.
      count: scalar, steps.
    """

    error: Any
    square: Any
    cosine: Any
    descent: Any
    count: Any


class Ran(NamedTuple):
    """What a run left.

    Attributes:
      sums: of the steps after the warm-up.
      trace: `[record, instance, chain, pool]`, logits at steps 0, every, 2 every, ...
      logits: `[instance, chain, pool]` after the last step.
      seconds: wall time, compiling excluded.
    """

    sums: Sums
    trace: np.ndarray
    logits: np.ndarray
    seconds: float


class Facts(NamedTuple):
    """Exact values at logits `[..., pool]`, by enumeration."""

    value: np.ndarray
    gradient: np.ndarray
    entropy: np.ndarray
    mode_loss: np.ndarray


class Programs:
    """Compiled programs, kept so that problems of one family share them."""

    def __init__(self, instances: int, chains: int, *, optimize: bool = True):
        """
        Args:
          instances: of every problem.
          chains: runs of each instance, side by side.
          optimize: whether the compiler optimises; without, programs compile in half
            the time and run slower.
        """
        self.instances, self.chains = instances, chains
        self._options = {} if optimize else {"xla_backend_optimization_level": 0}
        self._runs: dict[Any, Future] = {}
        self._facts: dict[Family, Callable[..., Any]] = {}
        self._compilers = ThreadPoolExecutor(2, thread_name_prefix="compiler")

    def prepare(self, variant: Variant, problem: Problem) -> Future:
        """Begins to compile in the background; done once for each program."""
        estimator = variant.build(problem.family)
        reads = {"path", "probe_slope"} & estimator.spec.needs
        # without slopes all that a problem's own numbers do is in its table
        key = (
            variant.name,
            repr(sorted(variant.options.items())),
            problem.family,
            problem.soft if reads else None,
            jax.tree.structure(problem.params),
        )
        if key not in self._runs:
            arguments = jax.eval_shape(
                lambda: self._arguments(variant, problem, problem.logits)
            )
            self._runs[key] = self._compilers.submit(
                self._compiled, variant, problem, arguments
            )
        return self._runs[key]

    def run(
        self,
        variant: Variant,
        problem: Problem,
        logits: np.ndarray,
        *,
        steps: int,
        warmup: int = 0,
        learning_rate: float = 0.0,
        tau: float | None = None,
        seed: int = 0,
    ) -> Ran:
        """Runs every chain of every instance.

        Args:
          variant: the estimator.
          problem: of as many instances as these programs have.
          logits: float32 `[instance, pool]`, where each chain starts.
          steps: in all, the warm-up among them.
          warmup: first steps that the sums leave out.
          learning_rate: of Adam; 0 keeps the logits.
          tau: another temperature than the variant's.
          seed: of the chains' keys.
        """
        program = self.prepare(variant, problem).result()
        arguments = self._arguments(
            variant,
            problem,
            logits,
            exact=self.facts(problem, logits).gradient,
            tau=tau,
            learning_rate=learning_rate,
            steps=steps,
            warmup=warmup,
            seed=seed,
        )
        began = time.perf_counter()
        sums, trace, last = jax.block_until_ready(program(*arguments))
        seconds = time.perf_counter() - began
        return Ran(
            jax.tree.map(np.asarray, sums), np.asarray(trace), np.asarray(last), seconds
        )

    def facts(self, problem: Problem, logits: np.ndarray) -> Facts:
        """Exact values at logits `[instance, ..., pool]` of each instance."""
        family = problem.family
        if family not in self._facts:
            self._facts[family] = jax.jit(
                jax.vmap(_make_facts(family)), compiler_options=self._options
            )
        shape = logits.shape[:-1]
        flat = jnp.asarray(logits, jnp.float32).reshape(shape[0], -1, family.n)
        found = self._facts[family](flat, jnp.asarray(problem.losses, jnp.float32))
        return Facts(
            *(np.asarray(x).reshape(*shape, *x.shape[2:]) for x in found),
        )

    def _arguments(
        self,
        variant: Variant,
        problem: Problem,
        logits: np.ndarray,
        *,
        exact: np.ndarray | None = None,
        tau: float | None = None,
        learning_rate: float = 0.0,
        steps: int = 1,
        warmup: int = 0,
        seed: int = 0,
    ) -> tuple[Any, ...]:
        """Of the program; any numbers will do to compile it."""
        tau = variant.tau if tau is None else tau
        return (
            jax.random.split(jax.random.key(seed), (self.instances, self.chains)),
            jnp.asarray(logits, jnp.float32),
            jnp.asarray(problem.losses, jnp.float32),
            jax.tree.map(jnp.asarray, problem.params),
            jnp.asarray(logits if exact is None else exact, jnp.float32),
            jnp.float32(1.0 if tau is None else tau),
            jnp.float32(learning_rate),
            jnp.int32(steps),
            jnp.int32(warmup),
        )

    def _compiled(self, variant: Variant, problem: Problem, arguments: Any) -> Any:
        run = make_run(variant, problem.family, problem.soft)
        return jax.jit(run).lower(*arguments).compile(self._options)


def make_run(
    variant: Variant, family: Family, soft: Callable[..., Any] | None
) -> Callable[..., tuple[Sums, jax.Array, jax.Array]]:
    """The program, not yet compiled; its arguments are in ``Programs.run``."""
    place = lookup(family)

    def run(keys, start, losses, params, exact, tau, learning_rate, steps, warmup):
        estimator = variant.build(family, tau)
        with_path = "path" in estimator.spec.needs

        def objective(draw: es.Draw, theta: Any, own: Any) -> jax.Array:
            del theta  # nothing but the logits learns
            own_losses, own_params = own
            if with_path:
                return soft(own_params, draw.weights)
            return own_losses[place(draw.outcomes)]

        adam = optax.scale_by_adam()
        evaluated = es.evaluate(estimator, objective)

        def one(number, key, logits, state, moments, losses, params, exact):
            """One step of one chain."""
            draw = es.ask(estimator, jax.random.fold_in(key, number), logits, state)
            values, through, _ = evaluated(draw, None, (losses, params))
            found = None
            if "probe_slope" in estimator.spec.needs:
                found = jax.grad(soft, argnums=1)(params, draw.probe)
            told = es.tell(estimator, logits, draw, values, state, found, through)
            gradient = told.logits_grad
            updates, moments = adam.update(gradient, moments)
            dot = gradient @ exact
            size = jnp.linalg.norm(gradient) * jnp.linalg.norm(exact)
            error = gradient - exact
            seen = Sums(
                error,
                error @ error,
                jnp.where(size > 0, dot / jnp.where(size > 0, size, 1.0), 0.0),
                (dot > 0).astype(jnp.float32),
                jnp.ones(()),
            )
            return logits - learning_rate * updates, told.state, moments, seen

        per_chain = jax.vmap(one, (None, 0, 0, 0, 0, None, None, None))
        everywhere = jax.vmap(per_chain, (None, 0, 0, 0, 0, 0, 0, 0))
        chains = keys.shape[1]
        logits = jnp.repeat(start[:, None], chains, axis=1)
        first = jax.vmap(jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1)))(keys)
        state = jax.vmap(jax.vmap(estimator.init))(first, logits)
        moments = jax.vmap(jax.vmap(adam.init))(logits)
        every = jnp.maximum(steps // RECORDS, 1)
        zero = jnp.zeros(keys.shape)
        sums = Sums(jnp.zeros_like(logits), zero, zero, zero, zero)
        trace = jnp.zeros((RECORDS + 1, *logits.shape))

        def body(number, carry):
            logits, state, moments, sums, trace = carry
            due = (number % every == 0) & (number < every * RECORDS)
            trace = trace.at[jnp.where(due, number // every, RECORDS)].set(logits)
            logits, state, moments, seen = everywhere(
                number, keys, logits, state, moments, losses, params, exact
            )
            counted = (number >= warmup).astype(jnp.float32)
            sums = jax.tree.map(lambda old, new: old + counted * new, sums, seen)
            return logits, state, moments, sums, trace

        logits, _, _, sums, trace = jax.lax.fori_loop(
            0, steps, body, (logits, state, moments, sums, trace)
        )
        return sums, trace[:RECORDS], logits

    return run


def _make_facts(family: Family) -> Callable[..., tuple[jax.Array, ...]]:
    outcomes = jnp.asarray(family.enumerate())
    place = lookup(family)

    def facts(logits: jax.Array, losses: jax.Array) -> tuple[jax.Array, ...]:
        """Of one instance, at logits `[many, pool]`."""

        def one(own: jax.Array) -> tuple[jax.Array, ...]:
            value, gradient = jax.value_and_grad(
                lambda own: expected_loss(family, own, losses)
            )(own)
            law = family.distribution(own)
            log_prob = law.log_prob(outcomes)
            chance = jnp.exp(log_prob)
            entropy = -jnp.sum(jnp.where(chance > 0, chance * log_prob, 0.0))
            return value, gradient, entropy, losses[place(law.mode())]

        return jax.vmap(one)(logits)

    return facts
