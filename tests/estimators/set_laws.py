"""Laws of categoricals and rankings, and of drawing them without replacement."""

import itertools

import numpy as np


def law_of(family, phi, mask):
    """Outcomes and probabilities by definition; excluded ones have probability 0."""
    weight = np.where(mask, np.exp(np.where(mask, phi, 0.0)), 0.0)
    table = family.enumerate()
    left = weight.sum() - np.cumsum(weight[table], 1) + weight[table]
    ratio = np.divide(weight[table], left, out=0 * left, where=weight[table] > 0)
    return table, ratio.prod(1)


def ordered_draws(prob, samples):
    """Every order in which distinct outcomes may come, and its probability."""
    for order in itertools.permutations(np.flatnonzero(prob > 0), samples):
        left, chance = 1.0, 1.0
        for outcome in order:
            chance *= prob[outcome] / left
            left -= prob[outcome]
        yield order, chance
