"""The bias of a few-shot classifier towards some labels, learned or read off.

A prompt's exemplars and wording favour some labels whatever the question is. One number
a label, added to its log-likelihood, takes that out: the continuous part of a harness
(``OutputPolicy.bias``).
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from components.output_policy import OutputPolicy
from metaharness.errors import HarnessError
from metaharness.harness.episodes import Writer
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.model.request import Request
from metaharness.runlog.budget import BudgetCounter
from metaharness.tasks.task import Item

CONTENT_FREE = ("N/A", "[MASK]", "")
"""Questions that say nothing (Zhao et al. 2021, section 5)."""
_RIDGE = 1e-3  # keeps labels that no item has from running away
_STEPS = 50


def label_nats(
    space: Space,
    choice: Choice,
    labels: Sequence[str],
    questions: Sequence[str],
    writer: Writer,
    *,
    counter: BudgetCounter,
) -> np.ndarray:
    """Summed nats of each label after each question: float64 ``[question, label]``."""
    template = space.harness.template.pool[choice.template]
    prefix = space.prefix_of(template, choice.exemplars)
    options = tuple(tuple(space.renderer.answer(label)) for label in labels)
    requests = [
        Request(
            prefix,
            tuple(space.renderer.question(template, question)),
            max(map(len, options)),
            options=options,
        )
        for question in questions
    ]
    out = np.zeros((len(questions), len(labels)))
    for batch in writer.batches(requests):
        counter.add(
            lm_calls=len(batch.completions),
            token_forwards=batch.token_forwards,
            padded_tokens=batch.padded_tokens,
        )
        for place, completion in batch.completions:
            out[place] = completion.option_nats
    return out


def fit_label_bias(nats: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """The bias under which the gold labels are likeliest: float64 ``[label]``, sum 0.

    nats: float ``[item, label]``; gold: int ``[item]``, the right label's place.
    Minimises the mean cross-entropy of softmax(bias - nats) and a small ridge penalty;
    strictly convex, by Newton steps with halving.
    """
    scores = jnp.asarray(-np.asarray(nats, np.float32))
    right = jnp.asarray(gold)

    def loss(bias):
        log_p = jax.nn.log_softmax(scores + bias)
        taken = jnp.take_along_axis(log_p, right[:, None], axis=1)
        return -taken.mean() + 0.5 * _RIDGE * (bias**2).sum()

    def improve(bias, _):
        step = jnp.linalg.solve(jax.hessian(loss)(bias), jax.grad(loss)(bias))
        sizes = 0.5 ** jnp.arange(8)
        tried = jax.vmap(lambda size: loss(bias - size * step))(sizes)
        best = jnp.argmin(tried)
        better = tried[best] < loss(bias)
        return jnp.where(better, bias - sizes[best] * step, bias), None

    start = jnp.zeros(scores.shape[1], jnp.float32)
    bias, _ = jax.lax.scan(improve, start, None, length=_STEPS)
    found = np.asarray(bias, float)
    return found - found.mean()


def contextual_bias(nats: np.ndarray) -> np.ndarray:
    """Contextual calibration (Zhao et al. 2021, section 5): the bias that makes the
    labels of questions without content equally likely, float64 ``[label]``, sum 0.

    nats: float ``[question, label]`` of such questions; probabilities are averaged.
    """
    log_p = -np.asarray(nats, float)
    log_p -= np.logaddexp.reduce(log_p, axis=1, keepdims=True)
    mean = np.logaddexp.reduce(log_p, axis=0) - np.log(len(log_p))
    return mean.mean() - mean


def learn_label_bias(
    space: Space,
    choice: Choice,
    items: Sequence[Item],
    writer: Writer,
    *,
    counter: BudgetCounter,
) -> OutputPolicy:
    """The output policy of a choice with its bias fitted on these items.

    Items whose answer is not among the policy's labels are left out.

    Raises HarnessError: the policy does not choose among labels, or no item has one.
    """
    policy = space.harness.policies(choice).output
    if not policy.constrain:
        raise HarnessError(
            f"output policy {policy.name!r}: expected one that chooses among labels, "
            "got one that writes freely; set constrain and labels"
        )
    known = [item for item in items if item.answer in policy.labels]
    if not known:
        raise HarnessError(
            f"label bias: expected items whose answers are among {policy.labels}, got "
            f"none of {len(items)}; give the task's own labels"
        )
    questions = [item.question for item in known]
    nats = label_nats(space, choice, policy.labels, questions, writer, counter=counter)
    gold = np.array([policy.labels.index(item.answer) for item in known])
    bias = tuple(map(float, fit_label_bias(nats, gold)))
    return dataclasses.replace(policy, bias=bias)
