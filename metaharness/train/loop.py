"""The training loop: the updates of a schedule, watched, logged and resumable."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from metaharness import keys
from metaharness.harness.call_cache import CallCache
from metaharness.harness.episodes import Writer
from metaharness.harness.objective import Problem
from metaharness.harness.relaxed import PoolCache
from metaharness.harness.space import EXEMPLARS, Space
from metaharness.model.adapter import adapted_model
from metaharness.model.complete import Completer
from metaharness.runlog import jsonfile
from metaharness.runlog.budget import BudgetCounter
from metaharness.runlog.interrupt import deferred_interrupt
from metaharness.runlog.progress import Progress
from metaharness.train.checks import check_parts, check_policies
from metaharness.train.compiled import Compiled, compile_updates
from metaharness.train.config import TrainConfig
from metaharness.train.episode_update import BudgetSpent
from metaharness.train.fitted import Fitted
from metaharness.train.guards import Watch, judge, out_of_patience
from metaharness.train.journal import Journal
from metaharness.train.metrics_row import VALIDATION, update_row, validation_row
from metaharness.train.schedule import (
    EPISODES,
    JOINT,
    RELAXED,
    TRAINS_THETA,
    WEIGHTS,
    plan_of,
)
from metaharness.train.state import Phi, TrainState, init_state
from metaharness.train.trust import GateRecord

PHASE = "train"
"""Of the budget counter; inside it ``harness`` and ``weights``."""
INTERRUPTED = "interrupted (Ctrl-C)"


class _Good(NamedTuple):
    """What a rollback returns to: parameters and their optimisers."""

    phi: Phi
    phi_optimizer: Any
    theta: Any
    theta_optimizer: Any


def fit(
    space: Space,
    config: TrainConfig,
    *,
    counter: BudgetCounter,
    journal: Journal | None = None,
    compiled: Compiled | None = None,
    start: Phi | None = None,
    writer: Writer | None = None,
    calls: CallCache | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Fitted:
    """Train what the schedule says.

    ``compiled``: functions of an earlier run of this space with the same settings but
    for the seed (and numbers of updates, where learning rates are constant).
    ``journal``: takes metrics and checkpoints; one that resumes puts training back to
    its newest checkpoint. ``start``: logits to start from, uniform by default.
    ``writer``: what writes in episodes, the space's model by default; ``calls``: serves
    texts that were written before, read only while no weights are trained. Stops
    cleanly, with everything so far, when a budget or patience is spent, when
    ``should_stop`` says so, and on Ctrl-C.
    """
    loop = _Loop(space, config, counter, journal, compiled, start)
    loop.writer = writer
    loop.calls = None if config.schedule.trains_weights else calls
    message = "stopping after this update; Ctrl-C again stops at once"
    with (
        counter.phase(PHASE),
        Progress("train", total=len(loop.kinds), quiet=config.quiet) as bar,
        deferred_interrupt("" if config.quiet else message) as interrupted,
    ):
        try:
            loop.run(bar, interrupted, should_stop)
        except KeyboardInterrupt:
            if not loop.alive():
                raise
            loop.stopped = INTERRUPTED
    return loop.result()


class _Loop:
    """One run of the schedule; its fields are what a checkpoint holds."""

    def __init__(self, space, config, counter, journal, compiled, start) -> None:
        self.space, self.config = space, config
        self.counter, self.journal = counter, journal
        self.compiled = compiled or compile_updates(space, config)
        self.writer: Writer | None = None
        self.calls: CallCache | None = None
        self.kinds = plan_of(config, policies=bool(space.harness.policy_slots))
        check_policies(config, self.kinds, space.harness.policy_slots)
        self.packs = space.pack(
            "train",
            width=config.search.pack_width,
            limit=config.evaluation.train_items,
        )
        check_parts(config, self.packs.items.shape[1])
        self.checks = None
        if config.guards.validate_every:
            self.checks = space.pack(
                "validation",
                width=config.search.pack_width,
                limit=config.evaluation.validation_items,
            )
        # the first update is given the state's buffers, and the caller keeps `start`
        root = keys.root_key(config.seed)
        self.state = init_state(space, config, root, start=_copy(start))
        self.good = _copy(_good(self.state))
        self.at = 0  # place in the schedule
        self.cache: PoolCache | None = None
        self.cache_theta = _copy(self.state.theta)
        self.cache_age = 0  # updates of theta since the pool was encoded
        self.gate = GateRecord(space.num_tasks)
        self.trusted = np.zeros((space.num_tasks,), bool)
        self.watch = Watch()
        self.trace: list[dict[str, Any]] = []
        self.validations: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.stopped = ""
        self.resumed = self.returned = False
        if journal is not None:
            self._open(journal)

    def run(self, bar, interrupted, should_stop) -> None:
        if EXEMPLARS in self.space.families:
            # what a resumed run encodes again was counted before it was killed
            self._encode(self.cache_theta, counted=not self.resumed)
        if self.at == 0 and not self.validations:
            self._validate()
        saved = self.at
        while self.at < len(self.kinds):
            self.stopped = self._why_stop(interrupted, should_stop)
            if self.stopped:
                break
            kind = self.kinds[self.at]
            if kind == RELAXED and not self._may_relax():
                self.at += 1
                continue
            try:
                self._update(kind, bar)
            except BudgetSpent as spent:
                self.stopped = str(spent)
                break
            self.at += 1
            every = self.config.guards.validate_every
            if every and int(self.state.step) % every == 0:
                self._validate()
            if self.at - saved >= self.config.checkpoint.every:
                self._save()
                saved = self.at
        self._save()
        self._return_to_best()

    def alive(self) -> bool:
        """Whether the state was not donated to an update that never came back."""
        leaves = jax.tree.leaves(self.state)
        return not any(leaf.is_deleted() for leaf in leaves)

    def result(self) -> Fitted:
        return Fitted(
            self.state,
            self.trace,
            self.gate,
            self.trusted,
            self.stopped,
            self.validations,
            self.watch,
            tuple(self.notes),
            self.returned,
        )

    def _why_stop(self, interrupted, should_stop) -> str:
        if interrupted():
            return INTERRUPTED
        if out_of_patience(self.watch, self.config.guards):
            return "no better validation for some time (guards.patience)"
        return self.counter.exceeded() or ("asked to" if should_stop() else "")

    def _may_relax(self) -> bool:
        """Trust in the gate is settled once, before a block of relaxed updates."""
        if EXEMPLARS not in self.space.families:
            return False
        if not self.trace or self.trace[-1]["kind"] != RELAXED:
            self.trusted = self.gate.trusted(self.config.search.trust)
        return bool(self.trusted.any())

    def _update(self, kind, bar) -> None:
        phase = "weights" if kind in TRAINS_THETA else "harness"
        with self.counter.phase(phase):
            self._freshen(kind)
            problem = Problem(
                self.space.model.decoder, self.space.table, self.packs, self.cache
            )
            active = np.ones((self.space.num_tasks,), bool)
            if kind == RELAXED:
                active = self.trusted
            graded = None
            if kind == EPISODES:
                self.state, out, graded = self.compiled.episodes(
                    self.state,
                    problem,
                    jnp.asarray(active),
                    seed=self.config.seed,
                    writer=self._writer(),
                    counter=self.counter,
                    cache=self.calls,
                )
            else:
                step = self.compiled.updates[kind]
                self.state, out = step(self.state, problem, jnp.asarray(active))
            out = jax.device_get(out)
            self.counter.add(
                lm_calls=out.calls,
                token_forwards=out.forward,
                backward_tokens=out.backward,
            )
        if kind in TRAINS_THETA:
            self.cache_age += 1
        if out.gated is not None:
            self.gate.add(out.gated, out.rows, out.template)
        row = update_row(
            self.space, int(self.state.step), out, kind, self.gate, active, graded
        )
        self.trace.append(self._append(row))
        bar.update(self.at + 1, {"loss": float(out.loss[active].mean())})

    def _writer(self) -> Writer:
        """What writes in episodes; trained weights are merged for it."""
        if self.writer is not None:
            return self.writer
        model = self.space.model
        if self.state.theta is not None:
            model = adapted_model(model, self.state.theta, self.config.lora)
        return Completer(
            model,
            tokens_at_once=self.config.episodes.tokens_at_once,
            implementation=self.space.implementation,
        )

    def _append(self, row) -> dict[str, Any]:
        row = jsonfile.json_safe(row)
        if self.journal is not None:
            self.journal.append(row)
        return row

    def _freshen(self, kind) -> None:
        """Encode the pool anew where an update reads keys of another theta."""
        if self.cache is None or self.cache_age == 0 or kind == WEIGHTS:
            return
        weights = self.config.weights
        if kind == JOINT and weights.through == "gate":
            if weights.cache == "exact":  # encodes for itself
                return
            if weights.cache == "stale" and self.cache_age < weights.refresh:
                return
        self.cache_theta = _copy(self.state.theta)
        self._encode(self.cache_theta)
        self.cache_age = 0

    def _encode(self, theta, *, counted: bool = True) -> None:
        pool = self.compiled.encode(self.space.model.decoder, theta)
        self.cache = PoolCache(pool, self.compiled.keys)
        if counted:
            self.counter.add(
                lm_calls=len(self.space.harness.candidates),
                token_forwards=self.space.pool_tokens,
            )

    def _validate(self) -> None:
        """Score the likeliest harness; remember the best state, or go back to it."""
        if self.checks is None:
            return
        guards = self.config.guards
        with self.counter.phase("validation"):
            problem = Problem(
                self.space.model.decoder, self.space.table, self.checks, None
            )
            losses = jax.device_get(
                self.compiled.validate(self.state.phi, self.state.theta, problem)
            )
            self.counter.add(
                lm_calls=int(losses.calls), token_forwards=int(losses.tokens.sum())
            )
        step = int(self.state.step)
        verdict = judge(self.watch, float(losses.loss.mean()), step, guards)
        self.watch = verdict.watch
        if verdict.improved:
            self.good = _copy(_good(self.state))
        if verdict.roll_back:
            self._roll_back()
        row = validation_row(self.space, step, losses.loss, verdict)
        self.validations.append(self._append(row))

    def _roll_back(self) -> None:
        self.state = self.state._replace(**_copy(self.good)._asdict())
        if self.state.theta is not None:
            self.cache_age = max(self.cache_age, 1)  # keys of a theta that is gone

    def _return_to_best(self) -> None:
        """Deploy the state that validated best, where validation can go back."""
        if self.checks is None or self.config.guards.rollback is None:
            return
        step = int(self.state.step)
        if not self.validations or self.validations[-1]["step"] != step:
            self._validate()
        if self.watch.best_step == step:
            return
        self._roll_back()
        self.returned = True
        self.notes.append(
            f"Validation was best after update {self.watch.best_step} of {step} "
            f"({self.watch.best:.2f} nats per answer): that state is kept."
            if self.watch.best_step >= 0
            else "No validation loss was a number: the state of the start is kept."
        )

    def _arrays(self) -> dict[str, Any]:
        return {"state": self.state, "good": self.good, "keys_of": self.cache_theta}

    def _save(self) -> None:
        if self.journal is None:
            return
        host = {
            "at": self.at,
            "age": self.cache_age,
            "budget": self.counter.state(),
            "gate": [self.gate.gated, self.gate.sequential],
            "trusted": self.trusted.tolist(),
            "watch": self.watch._asdict(),
        }
        self.journal.save(
            self.at, int(self.state.step), self._arrays(), jsonfile.json_safe(host)
        )

    def _open(self, journal: Journal) -> None:
        opened = journal.open(self._arrays())
        self.notes += [f"Resumed: {note}." for note in opened.notes]
        if not self.config.quiet:
            for note in self.notes:
                print(note, file=sys.stderr)
        if opened.host is None:
            return
        self.resumed = True
        host, tree = opened.host, opened.tree
        self.state, self.good = tree["state"], tree["good"]
        self.cache_theta, self.cache_age = tree["keys_of"], host["age"]
        self.at = host["at"]
        self.counter.go_on_from(host["budget"])
        self.gate.gated, self.gate.sequential = host["gate"]
        self.trusted = np.array(host["trusted"], bool)
        self.watch = Watch.from_json(host["watch"])
        for row in opened.rows:
            kept = self.validations if row["kind"] == VALIDATION else self.trace
            kept.append(row)
        if not self.config.quiet:
            done = f"{self.at} of {len(self.kinds)}"
            print(f"resumed after update {done}", file=sys.stderr)


def _good(state: TrainState) -> _Good:
    return _Good(state.phi, state.phi_optimizer, state.theta, state.theta_optimizer)


def _copy(tree):
    """Buffers of their own: the next update is given the state's."""
    return jax.tree.map(jnp.copy, tree)
