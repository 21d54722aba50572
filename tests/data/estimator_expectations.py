"""Expected gradients of biased estimators, where ``choice_oracles.py`` has none.

NumPy in float64, independent of the package: enumeration of all draws, or quadrature
over the one random number that matters for two candidates. Run this file to check the
formulas and to rewrite ``estimator_expectations.json``.

Two candidates. The difference of two Gumbel draws is a logistic L, so with x = phi_0 -
phi_1 + L and sigma the logistic function

    relaxed weight        w_0 = sigma(x / tau)
    its slope             d w_0 / d phi_0 = -d w_0 / d phi_1 = w_0 (1 - w_0) / tau

gumbel_softmax            E[f'(w_0) slope]
st_gumbel_softmax         E[f'(1 if x > 0 else 0) slope]: loss slope at the hard draw
gumbel_rao                the same mean: averaging the slope over noise given the hard
                          draw changes no expectation
soft_subset, 1 of 2       gumbel_softmax
soft_subset, 2 of 2       row 1 as above; alpha <- alpha + log(1 - a_1) makes the
                          difference of the logits x + log((1 - w_0) / w_0) = x - x /
                          tau, so row 2 is sigma((1 - 1 / tau) x / tau)

Enumerated, p = softmax(phi), J(r) = diag(r) - r r':

reinmax                   sum_i p_i [2 J((q + e_i) / 2) - J(p) / 2] grad f(e_i), q =
                          softmax(phi / tau), no factor 1 / tau
group_normalised          sum over tuples of mean_s (f_s - mean) / (sd + 1e-4) (e_s -
                          p), sd with divisor S
"""

import itertools
import json
import math
import pathlib

import numpy as np

TAUS = (2.0, 1.0, 0.5, 0.1)
PAIR = np.array([0.3, -0.5])
PHI = np.array([0.2, -0.4, 1.0, 0.1])
TABLE = np.array([1.3, -0.7, 0.4, 2.2])
A4 = np.array([0.5, -1.0, 0.25, 2.0])
B4 = np.array(
    [[0, 0.3, -0.2, 0.1], [0.3, 0, 0.4, -0.5], [-0.2, 0.4, 0, 0.6], [0.1, -0.5, 0.6, 0]]
)


# -------------------------------------------------------------------- losses --


def square_slope(w):
    """Of (w - 0.45)^2."""
    return 2 * (w - 0.45)


def ordered_slopes(first, second):
    """In W[0, 0] and W[1, 0] of a loss of two ordered places, each row of sum 1:

    (W[0, 0] - 0.45)^2 + 0.7 W[0, 0] W[1, 1] + 0.3 sin(2 W[1, 0]).
    """
    in_first = 2 * (first - 0.45) + 0.7 * (1 - second)
    in_second = -0.7 * first + 0.6 * np.cos(2 * second)
    return in_first, in_second


def ordered_value(first, second):
    return (first - 0.45) ** 2 + 0.7 * first * (1 - second) + 0.3 * np.sin(2 * second)


def curved(w):
    return math.exp(A4 @ w) + math.tanh(w @ B4 @ w + w[0])


def curved_grad(w):
    t = math.tanh(w @ B4 @ w + w[0])
    return A4 * math.exp(A4 @ w) + (1 - t * t) * (2 * B4 @ w + np.eye(4)[0])


# ---------------------------------------------------------------- quadrature --


def logistic(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def nodes(at, reach=60.0, panel=0.25, degree=24):
    """Gauss-Legendre points and weights over +-reach, panels ending at ``at``."""
    left = np.linspace(-reach, at, 1 + math.ceil((at + reach) / panel))
    right = np.linspace(at, reach, 1 + math.ceil((reach - at) / panel))
    point, weight = np.polynomial.legendre.leggauss(degree)
    found = []
    for edges in (left, right):
        half = np.diff(edges)[:, None] / 2
        middle = (edges[:-1] + edges[1:])[:, None] / 2
        found.append(((middle + half * point).ravel(), (half * weight).ravel()))
    return (np.concatenate(part) for part in zip(*found, strict=True))


def over_noise(integrand, phi=PAIR):
    """Mean of a function of x over the logistic noise; it may jump at x = 0."""
    gap = phi[0] - phi[1]
    noise, weight = nodes(-gap)
    density = 0.25 / np.cosh(0.5 * noise) ** 2
    return float(np.sum(weight * density * integrand(gap + noise)))


def relaxed_slope(x, tau):
    w = logistic(x / tau)
    return w, w * (1 - w) / tau


def both(slope):
    """A slope in phi_0 as a gradient: the two sum to 0."""
    return np.array([slope, -slope])


def gumbel_softmax(tau):
    def integrand(x):
        w, slope = relaxed_slope(x, tau)
        return square_slope(w) * slope

    return both(over_noise(integrand))


def st_gumbel_softmax(tau):
    def integrand(x):
        return square_slope(np.where(x > 0, 1.0, 0.0)) * relaxed_slope(x, tau)[1]

    return both(over_noise(integrand))


def soft_pair(x, tau):
    """Both rows of ``soft_subset``, 2 of 2, and their slopes in phi_0."""
    first, first_slope = relaxed_slope(x, tau)
    factor = (1 - 1 / tau) / tau
    second = logistic(factor * x)
    return first, second, first_slope, factor * second * (1 - second)


def soft_subset(tau, phi=PAIR):
    def integrand(x):
        first, second, first_slope, second_slope = soft_pair(x, tau)
        in_first, in_second = ordered_slopes(first, second)
        return in_first * first_slope + in_second * second_slope

    return both(over_noise(integrand, phi))


def soft_subset_value(tau, phi=PAIR):
    return over_noise(lambda x: ordered_value(*soft_pair(x, tau)[:2]), phi)


# --------------------------------------------------------------- enumeration --


def softmax(phi):
    weight = np.exp(phi - phi.max())
    return weight / weight.sum()


def jacobian(r):
    return np.diag(r) - np.outer(r, r)


def reinmax(grad_at, tau):
    p, q = softmax(PHI), softmax(PHI / tau)
    total = np.zeros(4)
    for hot, chance in zip(np.eye(4), p, strict=True):
        rule = 2 * jacobian((q + hot) / 2) - jacobian(p) / 2
        total += chance * rule @ grad_at(hot)
    return total


def group_normalised(samples, epsilon=1e-4):
    p = softmax(PHI)
    mean, second = np.zeros(4), 0.0
    for rows in itertools.product(range(4), repeat=samples):
        losses = TABLE[list(rows)]
        advantage = (losses - losses.mean()) / (losses.std() + epsilon)
        gradient = advantage @ (np.eye(4)[list(rows)] - p) / samples
        chance = p[list(rows)].prod()
        mean += chance * gradient
        second += chance * gradient @ gradient
    return dict(mean=mean, total_variance=second - mean @ mean)


# ---------------------------------------------------------------------- main --


def build():
    by_tau = {
        "gumbel_softmax": gumbel_softmax,
        "st_gumbel_softmax": st_gumbel_softmax,
        "gumbel_rao": st_gumbel_softmax,
        "soft_subset_1_of_2": gumbel_softmax,
        "soft_subset_2_of_2": soft_subset,
    }
    return {
        "relaxed_pair": dict(
            phi=PAIR,
            target=0.45,
            loss="(w_0 - 0.45)^2",
            ordered_loss="(W[0,0] - 0.45)^2 + 0.7 W[0,0] W[1,1] + 0.3 sin(2 W[1,0])",
            **{
                name: {str(tau): of(tau) for tau in TAUS} for name, of in by_tau.items()
            },
        ),
        "reinmax": dict(
            phi=PHI,
            linear_losses=TABLE,
            linear={str(tau): reinmax(lambda w: TABLE, tau) for tau in (1.0, 1.5)},
            curved={str(tau): reinmax(curved_grad, tau) for tau in (1.0, 1.5)},
        ),
        "group_normalised": dict(
            phi=PHI,
            losses=TABLE,
            **{str(samples): group_normalised(samples) for samples in (2, 3)},
        ),
    }


def check(cases):
    """Against central differences, a second derivation, and ``choice_oracles.json``."""
    oracles = pathlib.Path(__file__).with_name("choice_oracles.json")
    oracles = json.loads(oracles.read_text())

    def close(one, other, what, tol):
        error = np.abs(np.asarray(one) - np.asarray(other)).max()
        assert error < tol, (what, error)
        return error

    worst = 0.0
    step = 1e-4
    for tau in TAUS:
        up, down = (PAIR + np.array([sign * step, 0]) for sign in (1, -1))
        slope = (soft_subset_value(tau, up) - soft_subset_value(tau, down)) / (2 * step)
        found = cases["relaxed_pair"]["soft_subset_2_of_2"][str(tau)][0]
        worst = max(worst, close(slope, found, f"soft_subset {tau}", 1e-6))
        stored = oracles["relaxed_pair"][f"tau={tau}"]
        found = cases["relaxed_pair"]["gumbel_softmax"][str(tau)]
        worst = max(worst, close(stored["grad"], found, f"soft {tau}", 1e-10))
        # stored by a sum over a grid that ignores the jump at x = 0: good to its step
        found = cases["relaxed_pair"]["st_gumbel_softmax"][str(tau)]
        difference = close(stored["hard_grad"], found, f"hard {tau}", 2e-3)
        print(f"hard_grad of choice_oracles.json at tau {tau}: off by {difference:.1e}")
    mean = over_noise(lambda x: (x > 0) * 1.0)
    worst = max(worst, close(mean, logistic(0.8), "hard draws", 1e-12))
    for tau in ("1.0", "1.5"):
        stored = oracles["categorical_curved"]["expected_second_order"][tau]
        worst = max(
            worst, close(stored, cases["reinmax"]["curved"][tau], "reinmax", 1e-12)
        )
    exact = oracles["categorical_table"]["grad"]
    close(cases["reinmax"]["linear"]["1.0"], exact, "reinmax is exact if linear", 1e-12)
    # two samples: the deviation is half the distance, so the advantage is a sign
    p = softmax(PHI)
    signs = np.zeros(4)
    for i, j in itertools.product(range(4), repeat=2):
        half = abs(TABLE[i] - TABLE[j]) / 2
        share = half / (half + 1e-4) * np.sign(TABLE[i] - TABLE[j])
        signs += p[i] * p[j] * share * (np.eye(4)[i] - np.eye(4)[j]) / 2
    found = cases["group_normalised"]["2"]["mean"]
    return max(worst, close(signs, found, "group_normalised", 1e-12))


def to_plain(x):
    if isinstance(x, dict):
        return {k: to_plain(v) for k, v in x.items()}
    if isinstance(x, np.ndarray):
        return x.tolist()
    return x.item() if isinstance(x, np.generic) else x


if __name__ == "__main__":
    built = build()
    print("largest difference in the checks:", check(built))
    target = pathlib.Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(to_plain(built), indent=1) + "\n")
    print("wrote", target.name, "with", len(built), "cases")
