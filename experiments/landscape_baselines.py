"""Searches without a gradient on a landscape: random, successive halving, TPE.

Each is told a budget in evaluations (one is one harness on one item), deploys the
harness that looked best on what it saw, and is judged on all items.
"""

from collections.abc import Callable

import numpy as np

from experiments.landscape_file import Landscape
from metaharness.errors import InputError

_RETRIES = 50
"""Asks for a TPE trial without a repeated exemplar, before one is drawn at random."""


def random_search(
    landscape: Landscape,
    budgets: np.ndarray,
    rng: np.random.Generator,
    *,
    num_items: int,
) -> np.ndarray:
    """Harness that random search deploys at each budget, int ``[budget]``.

    Different harnesses in random order, each evaluated on the same random items.
    """
    order, items = _order_and_items(landscape, rng)
    seen = landscape.loss[order][:, items[:num_items]].mean(axis=1, dtype=np.float64)
    return _incumbents(order, seen, budgets // num_items)


def successive_halving(
    landscape: Landscape,
    budgets: np.ndarray,
    rng: np.random.Generator,
    *,
    first_items: int,
) -> np.ndarray:
    """Harness that successive halving deploys at each budget, int ``[budget]``.

    Rungs double the items and halve the harnesses (Jamieson & Talwalkar 2016, ratio
    2); earlier evaluations are kept, so a rung pays for its new items alone. The number
    of harnesses at the start is the most that the budget allows.
    """
    order, items = _order_and_items(landscape, rng)
    losses = landscape.loss[order][:, items]
    out = []
    for budget in budgets:
        alive = np.arange(_starters(int(budget), losses.shape, first_items))
        shown = first_items
        while len(alive) > 1 and shown < losses.shape[1]:
            means = losses[alive, :shown].mean(axis=1, dtype=np.float64)
            alive = alive[np.argsort(means, kind="stable")[: (len(alive) + 1) // 2]]
            shown = min(2 * shown, losses.shape[1])
        means = losses[alive, :shown].mean(axis=1, dtype=np.float64)
        out.append(order[alive[means.argmin()]])
    return np.array(out)


def halving_cost(starters: int, num_items: int, first_items: int) -> int:
    """Evaluations of successive halving that begins with this many harnesses."""
    alive, shown = starters, first_items
    cost = alive * shown
    while alive > 1 and shown < num_items:
        alive, more = (alive + 1) // 2, min(2 * shown, num_items)
        cost += alive * (more - shown)
        shown = more
    return cost


def tpe_search(
    landscape: Landscape,
    budgets: np.ndarray,
    rng: np.random.Generator,
    *,
    num_items: int,
) -> np.ndarray:
    """Harness that a TPE search (optuna) deploys at each budget, int ``[budget]``.

    One categorical parameter a slot and place; a trial that shows an exemplar twice
    fails at no cost and is asked again. Each trial is one harness on the same random
    items.

    Raises:
        InputError: optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            "the TPE search needs optuna, which is not installed; pip install optuna"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    families = landscape.families
    num_templates, own = families["template"].n, families["exemplars"]
    _, items = _order_and_items(landscape, rng)
    seen = landscape.loss[:, items[:num_items]].mean(axis=1, dtype=np.float64)
    category = optuna.distributions.CategoricalDistribution
    space = {"template": category(list(range(num_templates)))} | {
        f"place{j}": category(list(range(own.n))) for j in range(own.k)
    }
    sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)))
    study = optuna.create_study(sampler=sampler)
    tried = []
    for _ in range(int(budgets.max()) // num_items):
        at = -1
        for _ in range(_RETRIES):
            trial = study.ask(space)
            at = landscape.index[tuple(trial.params[name] for name in space)]
            if at >= 0:
                study.tell(trial, float(seen[at]))
                break
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            at = int(rng.integers(len(seen)))
        tried.append(int(at))
    return _incumbents(np.array(tried), seen[tried], budgets // num_items)


def baselines(num_items: int, batch: int) -> dict[str, Callable]:
    """Name -> (landscape, budgets, rng) -> deployed harness at each budget.

    Random search and TPE with all items a harness, and with fewer: ``batch`` items for
    random search, half of all for TPE.
    """
    half = max(num_items // 2, 1)
    first = max(num_items // 16, 1)
    table = {
        f"random search, {num_items} items": (random_search, num_items),
        f"random search, {batch} items": (random_search, batch),
        f"TPE, {num_items} items": (tpe_search, num_items),
        f"TPE, {half} items": (tpe_search, half),
    }

    def searched(search, items):
        return lambda *args: search(*args, num_items=items)

    out = {name: searched(*own) for name, own in table.items()}
    out[f"successive halving from {first} items"] = lambda *args: successive_halving(
        *args, first_items=first
    )
    return out


def _order_and_items(landscape: Landscape, rng: np.random.Generator):
    """All harnesses and all items, each in random order."""
    return (
        rng.permutation(len(landscape.template)),
        rng.permutation(landscape.num_items),
    )


def _starters(budget: int, shape: tuple[int, int], first_items: int) -> int:
    """The most harnesses that successive halving can begin with, at least 1."""
    low, high = 1, shape[0]
    while low < high:
        middle = (low + high + 1) // 2
        if halving_cost(middle, shape[1], first_items) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _incumbents(order: np.ndarray, seen: np.ndarray, num: np.ndarray) -> np.ndarray:
    """The best of the first ``num`` tried, for each of ``num`` (at least one)."""
    best = np.minimum.accumulate(seen)
    # where the running minimum was last improved
    improved = np.r_[True, seen[1:] < best[:-1]]
    last = np.maximum.accumulate(np.where(improved, np.arange(len(seen)), 0))
    return order[last[np.clip(num, 1, len(seen)) - 1]]
