# ruff: noqa: B023, B905, E501, E731
"""Exact right values for expected-loss gradients over discrete harness choices.

A harness component is a choice over a candidate pool with logits ``phi``:

* categorical   one of N                      p_i = exp(phi_i) / sum exp(phi)
* subset        k of N, order ignored         p(S) = prod_{i in S} exp(phi_i) / e_k(exp(phi))
* ordered       k of N, order matters         p(s) = prod_j exp(phi_{s_j}) / sum_{i not in s_<j} exp(phi_i)

Everything below is float64 NumPy and enumerates the outcomes, so it is the
reference that estimator tests compare against.  Run this file to re-check the
formulas against central differences and to rewrite ``choice_oracles.json``.
"""

import itertools
import json
import math
import pathlib

import numpy as np

# ----------------------------------------------------------------- helpers --


def log_sum_exp(x, axis=None):
    x = np.asarray(x, float)
    m = np.max(x, axis=axis, keepdims=True)
    m = np.where(np.isfinite(m), m, 0.0)
    with np.errstate(divide="ignore"):
        out = np.log(np.sum(np.exp(x - m), axis=axis, keepdims=True)) + m
    return out.item() if axis is None else np.squeeze(out, axis)


def log_softmax(phi):
    phi = np.asarray(phi, float)
    return phi - log_sum_exp(phi)


def central_difference(fun, phi, h=1e-5):
    phi = np.asarray(phi, float)
    cols = []
    for i in range(phi.size):
        e = np.zeros_like(phi)
        e[i] = h
        cols.append((np.asarray(fun(phi + e)) - np.asarray(fun(phi - e))) / (2 * h))
    return np.stack(cols, -1)


def entropy_of(logp):
    p = np.exp(logp)
    return -float(np.sum(np.where(p > 0, p * np.where(p > 0, logp, 0.0), 0.0)))


# ------------------------------------------- outcomes, log-probs and scores --
# Each family gives: outcomes (list of index tuples), logp [R], and the score
# matrix d logp / d phi [R, N].  Every exact quantity follows from these three.


def categorical(phi):
    n = len(phi)
    logp = log_softmax(phi)
    score = np.eye(n) - np.exp(logp)[None, :]
    return [(i,) for i in range(n)], logp, score


def subset(phi, k):
    n = len(phi)
    outcomes = list(itertools.combinations(range(n), k))
    hot = multi_hot(outcomes, n)
    logp = hot @ np.asarray(phi, float)
    logp = logp - log_sum_exp(logp)
    return outcomes, logp, hot - (np.exp(logp) @ hot)[None, :]


def ordered(phi, k):
    phi = np.asarray(phi, float)
    n = len(phi)
    outcomes = list(itertools.permutations(range(n), k))
    logp, score = np.zeros(len(outcomes)), np.zeros((len(outcomes), n))
    for r, s in enumerate(outcomes):
        left = np.ones(n, bool)
        for i in s:
            rest = np.where(left, phi, -np.inf)
            ls = log_softmax(rest)
            logp[r] += ls[i]
            score[r, i] += 1.0
            score[r] -= np.exp(ls)
            left[i] = False
    return outcomes, logp, score


def multi_hot(outcomes, n):
    hot = np.zeros((len(outcomes), n))
    for r, s in enumerate(outcomes):
        hot[r, list(s)] = 1.0
    return hot


def exact(family, losses):
    """E[f], d E[f]/d phi, entropy and d entropy/d phi for one component."""
    _, logp, score = family
    p, losses = np.exp(logp), np.asarray(losses, float)
    value = float(p @ losses)
    grad = (p * (losses - value)) @ score
    ent = entropy_of(logp)
    safe = np.where(p > 0, logp, 0.0)
    ent_grad = -(p * (safe + ent)) @ score
    return dict(value=value, grad=grad, entropy=ent, entropy_grad=ent_grad)


# ------------------------------------------------------------- fast subset --


def log_esp(phi, k):
    """table[i, j] = log e_j(exp(phi_0), ..., exp(phi_{i-1})), i<=N, j<=k."""
    n = len(phi)
    table = np.full((n + 1, k + 1), -np.inf)
    table[0, 0] = 0.0
    for i in range(n):
        table[i + 1, 0] = 0.0
        table[i + 1, 1:] = np.logaddexp(table[i, 1:], table[i, :-1] + phi[i])
    return table


def subset_moments(phi, k):
    """log Z, inclusion marginals, covariance of the k-hot vector, entropy.

    Prefix and suffix tables are merged, so no division by an elementary
    symmetric polynomial ever happens (that division loses all digits when one
    logit dominates).
    """
    phi = np.asarray(phi, float)
    n = len(phi)
    fwd, bwd = log_esp(phi, k), log_esp(phi[::-1], k)
    log_z = fwd[n, k]

    def log_without(
        i, j
    ):  # log e_{k-1} of the pool without i (or e_{k-2} without i, j)
        if j is None:
            return log_sum_exp(
                [fwd[i, a] + bwd[n - 1 - i, k - 1 - a] for a in range(k)]
            )
        if k < 2:
            return -np.inf
        rest = np.delete(phi, [i, j])
        return log_esp(rest, k - 2)[-1, k - 2]

    mu = np.array([np.exp(phi[i] + log_without(i, None) - log_z) for i in range(n)])
    pair = np.diag(mu)
    for i in range(n):
        for j in range(i + 1, n):
            pair[i, j] = pair[j, i] = np.exp(
                phi[i] + phi[j] + log_without(i, j) - log_z
            )
    return dict(
        log_z=log_z,
        marginals=mu,
        covariance=pair - np.outer(mu, mu),
        entropy=log_z - phi @ mu,
    )


def subset_walk_log_prob(phi, members, k):
    """Log-prob of drawing ``members`` by the exact sampler: visit N-1, ..., 0 and take
    candidate i with probability exp(phi_i + table[i, left - 1] - table[i + 1, left])."""
    table, left, total = log_esp(phi, k), k, 0.0
    for i in range(len(phi) - 1, -1, -1):
        take = (
            math.exp(phi[i] + table[i, left - 1] - table[i + 1, left]) if left else 0.0
        )
        if i in members:
            total, left = total + math.log(take), left - 1
        else:
            total += math.log1p(-take) if take < 1 else -math.inf
    return total


def linear_proxy(family, hot, losses):
    """Best linear fit of the losses on the k-hot vector (minimum norm).

    Its gradient, covariance @ coefficients, equals the exact gradient whatever
    the losses are; the coefficients themselves are the natural gradient.
    """
    p = np.exp(family[1])
    x = np.sqrt(p)[:, None] * (hot - p @ hot)
    return np.linalg.lstsq(
        x, np.sqrt(p) * (np.asarray(losses) - p @ losses), rcond=1e-12
    )[0]


# --------------------------------------------------------- ordered, helpers --


def ordered_set_log_prob(phi, members):
    """log P(the first k of the ordered draw is this set, in any order).

    Inclusion-exclusion over the members: with exponential clocks of rate
    w_i = exp(phi_i) the set wins iff all its clocks ring before every other.
    """
    w = np.exp(np.asarray(phi, float) - np.max(phi))
    rest = w.sum() - w[list(members)].sum()
    total = 0.0
    for size in range(len(members) + 1):
        for part in itertools.combinations(members, size):
            total += (-1.0) ** size * rest / (rest + w[list(part)].sum())
    return math.log(total)


# ------------------------------- expectation and variance of estimators ----


def expected_straight_through(phi, grad_f, tau=1.0):
    """Average over the draw of J(softmax(phi/tau))/tau applied to grad f at the one-hot."""
    n, p = len(phi), np.exp(log_softmax(phi))
    q = np.exp(log_softmax(np.asarray(phi, float) / tau))
    jac = (np.diag(q) - np.outer(q, q)) / tau
    return sum(p[i] * jac @ grad_f(np.eye(n)[i]) for i in range(n))


def expected_second_order(phi, grad_f, tau=1.0):
    """Average of the trapezoid (second-order) straight-through rule."""
    n, p = len(phi), np.exp(log_softmax(phi))
    q = np.exp(log_softmax(np.asarray(phi, float) / tau))
    jac = lambda r: np.diag(r) - np.outer(r, r)
    out = np.zeros(n)
    for i in range(n):
        hot = np.eye(n)[i]
        out += p[i] * (2 * jac(0.5 * (q + hot)) - 0.5 * jac(p)) @ grad_f(hot)
    return out


def expected_marginal_subset(phi, k, grad_f):
    """Average over subsets of (d marginals / d phi) applied to grad f at the k-hot."""
    outcomes, logp, _ = subset(phi, k)
    cov = subset_moments(phi, k)["covariance"]
    hot = multi_hot(outcomes, len(phi))
    return cov @ sum(np.exp(lp) * grad_f(z) for lp, z in zip(logp, hot))


def score_estimator_moments(family, losses, samples=1, baseline="none"):
    """Exact mean and total variance (trace of covariance) of score estimators.

    baseline: "none", "mean" (subtract E f), or "loo" (leave-one-out, samples>=2),
    or "group" (subtract the batch mean, divide by samples: biased by (S-1)/S).
    """
    _, logp, score = family
    p, f = np.exp(logp), np.asarray(losses, float)
    mean, second = np.zeros(score.shape[1]), 0.0
    for draw in itertools.product(range(len(p)), repeat=samples):
        d = list(draw)
        weight = float(np.prod(p[d]))
        fs = f[d]
        if baseline == "none":
            adv = fs
        elif baseline == "mean":
            adv = fs - p @ f
        elif baseline == "loo":
            adv = fs - (fs.sum() - fs) / (samples - 1)
        elif baseline == "group":
            adv = fs - fs.mean()
        g = (adv[:, None] * score[d]).mean(0)
        mean += weight * g
        second += weight * g @ g
    return dict(mean=mean, total_variance=second - mean @ mean)


def without_replacement_moments(phi, losses, size):
    """Exact mean and total variance of the unordered-set estimator (with its built-in baseline)."""
    p, f = np.exp(log_softmax(phi)), np.asarray(losses, float)
    n = len(p)

    def set_prob(members, domain):  # P(ordered draw from domain starts with this set)
        if not members:
            return 1.0
        local = {d: j for j, d in enumerate(domain)}
        if len(members) == len(domain):
            return 1.0
        return math.exp(
            ordered_set_log_prob(
                np.log(p[list(domain)]), tuple(local[m] for m in members)
            )
        )

    everything = tuple(range(n))
    mean, second = np.zeros(n), 0.0
    for s_set in itertools.combinations(range(n), size):
        prob = set_prob(s_set, everything)
        g = np.zeros(n)
        for s in s_set:
            dom = tuple(i for i in everything if i != s)
            sub = tuple(i for i in s_set if i != s)
            ratio = set_prob(sub, dom) / prob
            base = 0.0
            for t in s_set:
                if t == s:
                    base += p[t] * f[t]
                else:
                    dom2 = tuple(i for i in dom if i != t)
                    sub2 = tuple(i for i in sub if i != t)
                    base += p[t] * f[t] * set_prob(sub2, dom2) / set_prob(sub, dom)
            g += p[s] * (np.eye(n)[s] - p) * ratio * (f[s] - base)
        mean += prob * g
        second += prob * g @ g
    return dict(mean=mean, total_variance=second - mean @ mean)


def relaxed_pair(phi, tau, fun, dfun, nodes=240_001):
    """Two-candidate relaxed sample: value, gradient and gradient variance by quadrature.

    ``hard_grad`` is the straight-through variant: the loss slope is read at the
    rounded sample, the sampling slope at the relaxed one.  The difference of two Gumbel draws is a logistic draw L = log(u) - log(1-u),
    so w_0 = sigmoid((phi_0 - phi_1 + L) / tau) and only one integral is left.
    """
    ell, step = np.linspace(-60.0, 60.0, nodes, retstep=True)
    dens = 0.25 / np.cosh(0.5 * ell) ** 2
    w0 = 1.0 / (1.0 + np.exp(-np.clip((phi[0] - phi[1] + ell) / tau, -700, 700)))
    slope = dfun(w0) * w0 * (1 - w0) / tau  # d f / d phi_0 = -d f / d phi_1
    avg = lambda v: float(step * np.sum(dens * v))  # smooth and vanishing at both ends
    g = avg(slope)
    hard_slope = dfun((w0 > 0.5) * 1.0) * w0 * (1 - w0) / tau
    h = avg(hard_slope)
    return dict(
        value=avg(fun(w0)),
        grad=np.array([g, -g]),
        grad_variance=avg(slope**2) - g * g,
        hard_grad=np.array([h, -h]),
        hard_grad_variance=avg(hard_slope**2) - h * h,
    )


# ------------------------------------------------------------- gated pool ----


def gated_attention(q, keys, values, owner, w, scale):
    """One query over keys owned by pool members; owner -1 means always on.

    Returns the output, and d output / d w written with block log-sum-exps, which
    is finite at w = 0.
    """
    scores = keys @ q * scale
    n = len(w)
    gate = np.where(owner < 0, 1.0, np.asarray(w, float)[np.maximum(owner, 0)])
    top = np.max(scores[gate > 0])
    e = np.where(gate > 0, np.exp(np.where(gate > 0, scores - top, 0.0)), 0.0) * gate
    out = e @ values / e.sum()
    lse_total = top + math.log(e.sum())
    jac = np.zeros((values.shape[1], n))
    for i in range(n):
        mine = owner == i
        lse_i = log_sum_exp(scores[mine])
        out_i = np.exp(scores[mine] - lse_i) @ values[mine]
        jac[:, i] = np.exp(lse_i - lse_total) * (out_i - out)
    return out, jac


# --------------------------------------------------------------------- main --

A4 = np.array([0.5, -1.0, 0.25, 2.0])
B4 = np.array(
    [[0, 0.3, -0.2, 0.1], [0.3, 0, 0.4, -0.5], [-0.2, 0.4, 0, 0.6], [0.1, -0.5, 0.6, 0]]
)
A5 = np.array([0.7, -0.3, 1.1, 0.2, -0.9])
C5 = np.array([0.4, 0.1, -0.6, 0.9, 0.3])


def quad4(w):
    return A4 @ w + w @ B4 @ w + 0.5 * w @ w


def quad4_grad(w):
    return A4 + 2 * B4 @ w + w


def curved4(w):
    return math.exp(A4 @ w) + math.tanh(w @ B4 @ w + w[0])


def curved4_grad(w):
    t = math.tanh(w @ B4 @ w + w[0])
    return A4 * math.exp(A4 @ w) + (1 - t * t) * (2 * B4 @ w + np.array([1.0, 0, 0, 0]))


def curved5(w):
    return A5 @ w + 0.5 * (C5 @ w) ** 2 + math.sin(A5 @ w * (C5 @ w))


def curved5_grad(w):
    a, c = A5 @ w, C5 @ w
    return A5 + C5 * c + math.cos(a * c) * (A5 * c + C5 * a)


def order_loss(s):
    """A loss that depends on order: weighted by slot (used by the ordered cases)."""
    return sum(A4[i] * (j + 1.0) for j, i in enumerate(s)) + 0.3 * B4[s[0], s[-1]]


def build():
    cases = {}

    phi = np.array([0.2, -0.4, 1.0, 0.1])
    table = [1.3, -0.7, 0.4, 2.2]
    cases["categorical_table"] = dict(
        phi=phi, losses=table, **exact(categorical(phi), table)
    )

    for name, f, g in (
        ("quadratic", quad4, quad4_grad),
        ("curved", curved4, curved4_grad),
    ):
        losses = [f(e) for e in np.eye(4)]
        cases["categorical_" + name] = dict(
            phi=phi,
            losses=losses,
            **exact(categorical(phi), losses),
            expected_straight_through={
                str(t): expected_straight_through(phi, g, t) for t in (0.5, 1.0, 2.0)
            },
            expected_second_order={
                str(t): expected_second_order(phi, g, t) for t in (1.0, 1.5)
            },
        )

    fam = categorical(phi)
    cases["categorical_table_moments"] = dict(
        phi=phi,
        losses=table,
        exact_grad=exact(fam, table)["grad"],
        score_1_none=score_estimator_moments(fam, table, 1, "none"),
        score_1_mean=score_estimator_moments(fam, table, 1, "mean"),
        score_2_none=score_estimator_moments(fam, table, 2, "none"),
        score_2_loo=score_estimator_moments(fam, table, 2, "loo"),
        score_3_loo=score_estimator_moments(fam, table, 3, "loo"),
        score_3_group=score_estimator_moments(fam, table, 3, "group"),
        set_2_without_replacement=without_replacement_moments(phi, table, 2),
        set_3_without_replacement=without_replacement_moments(phi, table, 3),
    )

    toy = {}
    for t in (0.499, 0.45):
        for theta in (0.0, 1.0):
            p = 1 / (1 + math.exp(-theta))
            toy[f"t={t},theta={theta}"] = dict(
                value=p * (1 - t) ** 2 + (1 - p) * t**2,
                grad=p * (1 - p) * (1 - 2 * t),
                expected_straight_through=p * (1 - p) * 2 * (p - t),
                minimum=min(t * t, (1 - t) ** 2),
                straight_through_fixed_point_loss=t * (1 - t),
            )
    cases["bernoulli_toy"] = toy

    phi5, k = np.array([0.6, -0.2, 1.1, 0.0, -0.7]), 2
    fam = subset(phi5, k)
    hot = multi_hot(fam[0], 5)
    losses = [curved5(z) for z in hot]
    cases["subset_curved"] = dict(
        phi=phi5,
        k=k,
        losses=losses,
        log_esp=log_esp(phi5, k)[-1],
        probs=np.exp(fam[1]),
        **exact(fam, losses),
        **{m: v for m, v in subset_moments(phi5, k).items() if m != "entropy"},
        expected_marginal_straight_through=expected_marginal_subset(
            phi5, k, curved5_grad
        ),
        linear_proxy=linear_proxy(fam, hot, losses),
    )
    prob = np.array([0.3, 0.6, 0.5, 0.2])
    mom = subset_moments(np.log(prob / (1 - prob)), 2)
    cases["subset_from_bernoulli"] = dict(
        inclusion_probs=prob,
        k=2,
        log_prob_exactly_k=mom["log_z"] + np.log(1 - prob).sum(),
        marginals=mom["marginals"],
        entropy=mom["entropy"],
    )
    out, logp, _ = ordered(phi5, k)
    first = multi_hot(out, 5)
    cases["subset_is_not_top_k"] = dict(
        phi=phi5,
        k=k,
        subset_marginals=subset_moments(phi5, k)["marginals"],
        ordered_inclusion=np.exp(logp) @ first,
    )

    phi4 = np.array([0.5, -0.3, 0.9, 0.0])
    fam = ordered(phi4, 2)
    losses = [order_loss(s) for s in fam[0]]
    slot = np.zeros((2, 4))
    for lp, s in zip(fam[1], fam[0]):
        for j, i in enumerate(s):
            slot[j, i] += math.exp(lp)
    cases["ordered_pairs"] = dict(
        phi=phi4,
        k=2,
        outcomes=fam[0],
        losses=losses,
        probs=np.exp(fam[1]),
        slot_marginals=slot,
        set_log_probs={
            f"{i},{j}": ordered_set_log_prob(phi4, (i, j))
            for i, j in itertools.combinations(range(4), 2)
        },
        **exact(fam, losses),
    )

    # A whole harness: one template, an unordered pair, an ordered pair; one loss.
    pa, pb, pc = (
        np.array([0.1, -0.5, 0.4]),
        np.array([0.3, 0.0, -0.6, 0.8]),
        np.array([0.2, 0.7, -0.1]),
    )
    fa, fb, fc = categorical(pa), subset(pb, 2), ordered(pc, 2)
    joint = np.zeros((len(fa[0]), len(fb[0]), len(fc[0])))
    for x, a in enumerate(fa[0]):
        for y, b in enumerate(fb[0]):
            for z, c in enumerate(fc[0]):
                joint[x, y, z] = math.sin(1 + a[0] + A4[list(b)].sum()) + 0.2 * (
                    c[0] - 2 * c[1]
                ) * (1 + a[0])
    qa, qb, qc = np.exp(fa[1]), np.exp(fb[1]), np.exp(fc[1])
    cases["whole_harness"] = dict(
        template=dict(phi=pa),
        pair=dict(phi=pb, k=2),
        order=dict(phi=pc, k=2),
        value=float(np.einsum("xyz,x,y,z", joint, qa, qb, qc)),
        grad_template=exact(fa, np.einsum("xyz,y,z->x", joint, qb, qc))["grad"],
        grad_pair=exact(fb, np.einsum("xyz,x,z->y", joint, qa, qc))["grad"],
        grad_order=exact(fc, np.einsum("xyz,x,y->z", joint, qa, qb))["grad"],
        entropy=entropy_of(fa[1]) + entropy_of(fb[1]) + entropy_of(fc[1]),
    )

    f, df = lambda w: (w - 0.45) ** 2, lambda w: 2 * (w - 0.45)
    p0 = 1 / (1 + math.exp(-0.8))
    cases["relaxed_pair"] = dict(
        phi=[0.3, -0.5],
        target=0.45,
        exact_value=p0 * 0.55**2 + (1 - p0) * 0.45**2,
        exact_grad_0=p0 * (1 - p0) * (0.55**2 - 0.45**2),
        **{
            f"tau={t}": relaxed_pair([0.3, -0.5], t, f, df)
            for t in (2.0, 1.0, 0.5, 0.1)
        },
    )

    rng_free = lambda r, c, s: np.sin(np.arange(r * c).reshape(r, c) * 1.7 + s)
    keys, vals = rng_free(7, 3, 0.1), rng_free(7, 2, 0.9)
    owner = np.array([-1, 0, 0, 1, 1, 1, 2])
    q = np.array([0.7, -1.2, 0.4])
    gate = {}
    for w in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.2, 0.5, 0.3]):
        o, j = gated_attention(q, keys, vals, owner, w, 3**-0.5)
        gate[str(w)] = dict(output=o, jacobian=j)
    cases["gated_attention"] = dict(
        note="keys[r,c]=sin(1.7*(3r+c)+0.1), values[r,c]=sin(1.7*(2r+c)+0.9)",
        query=q,
        owner=owner,
        scale=3**-0.5,
        **gate,
    )

    extreme = np.array([0.0, -200.0, 200.0, -1e9])
    cases["extreme_logits"] = dict(
        phi=extreme,
        **exact(categorical(extreme), [1.0, 2.0, 3.0, 4.0]),
        subset_marginals_k2=subset_moments(extreme, 2)["marginals"],
    )
    return cases


def check(cases):
    """Every closed form against central differences or a second derivation."""
    worst = 0.0

    def close(a, b, what, tol=2e-8):
        nonlocal worst
        err = float(np.max(np.abs(np.asarray(a) - np.asarray(b))))
        worst = max(worst, err)
        assert err < tol, (what, err)

    rng = np.random.default_rng(0)
    for n, k in ((4, 1), (5, 2), (6, 3), (5, 4)):
        phi = rng.normal(size=n)
        for fam in (lambda p: subset(p, k), lambda p: ordered(p, k)):
            losses = rng.normal(size=len(fam(phi)[0]))
            got = exact(fam(phi), losses)
            close(
                got["grad"],
                central_difference(lambda p: exact(fam(p), losses)["value"], phi),
                "grad",
            )
            close(
                got["entropy_grad"],
                central_difference(lambda p: exact(fam(p), losses)["entropy"], phi),
                "entropy",
            )
            close(got["grad"].sum(), 0.0, "logits are shift invariant", 1e-12)
            close(np.exp(fam(phi)[1]).sum(), 1.0, "probabilities", 1e-12)
        mom, sub = subset_moments(phi, k), subset(phi, k)
        p, hot = np.exp(sub[1]), multi_hot(sub[0], n)
        close(mom["marginals"], p @ hot, "marginals", 1e-12)
        close(
            mom["covariance"],
            (hot * p[:, None]).T @ hot - np.outer(p @ hot, p @ hot),
            "covariance",
            1e-12,
        )
        close(
            mom["covariance"],
            central_difference(lambda q: subset_moments(q, k)["marginals"], phi),
            "d marginals",
        )
        close(mom["entropy"], entropy_of(sub[1]), "entropy", 1e-12)
        close(
            -mom["covariance"] @ phi,
            exact(sub, p)["entropy_grad"],
            "entropy grad",
            1e-12,
        )
        walk = [subset_walk_log_prob(phi, s, k) for s in sub[0]]
        close(walk, sub[1], "sampler walk", 1e-10)
        losses = rng.normal(size=len(p))
        close(
            mom["covariance"] @ linear_proxy(sub, hot, losses),
            exact(sub, losses)["grad"],
            "linear proxy is exact",
            1e-11,
        )
        slopes = rng.normal(size=n)
        close(
            expected_marginal_subset(phi, k, lambda z: slopes),
            exact(sub, hot @ slopes)["grad"],
            "marginals are exact for linear losses",
            1e-12,
        )
        out, logp, _ = ordered(phi, k)
        for s in itertools.combinations(range(n), k):
            direct = sum(math.exp(lp) for lp, o in zip(logp, out) if set(o) == set(s))
            if k < n:
                close(math.exp(ordered_set_log_prob(phi, s)), direct, "set prob", 1e-12)
    c = cases["categorical_quadratic"]
    close(
        c["expected_second_order"]["1.0"],
        c["grad"],
        "second order is exact for quadratics",
        1e-12,
    )
    m = cases["categorical_table_moments"]
    for name in (
        "score_1_none",
        "score_1_mean",
        "score_2_none",
        "score_2_loo",
        "score_3_loo",
        "set_2_without_replacement",
        "set_3_without_replacement",
    ):
        close(m[name]["mean"], m["exact_grad"], name + " unbiased", 1e-12)
    close(
        m["score_3_group"]["mean"],
        m["exact_grad"] * 2 / 3,
        "batch-mean baseline shrinks by (S-1)/S",
        1e-12,
    )
    g = cases["gated_attention"]
    q, owner, w = g["query"], g["owner"], np.array([0.2, 0.5, 0.3])
    keys = np.sin(np.arange(21).reshape(7, 3) * 1.7 + 0.1)
    vals = np.sin(np.arange(14).reshape(7, 2) * 1.7 + 0.9)
    close(
        g["[0.2, 0.5, 0.3]"]["jacobian"],
        central_difference(
            lambda v: gated_attention(q, keys, vals, owner, v, 3**-0.5)[0], w
        ),
        "gate",
    )
    keep = owner != 1
    keep &= owner != 2
    s = keys[keep] @ q * 3**-0.5
    close(
        g["[1.0, 0.0, 0.0]"]["output"],
        np.exp(s - log_sum_exp(s)) @ vals[keep],
        "one-hot gate is selection",
        1e-15,
    )
    h = 1e-7
    up = gated_attention(q, keys, vals, owner, [1.0, h, 0.0], 3**-0.5)[0]
    close(
        g["[1.0, 0.0, 0.0]"]["jacobian"][:, 1],
        (up - g["[1.0, 0.0, 0.0]"]["output"]) / h,
        "one-sided slope at zero",
        1e-5,
    )
    return worst


def to_plain(x):
    if isinstance(x, dict):
        return {k: to_plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [to_plain(v) for v in x]
    if isinstance(x, np.ndarray):
        return to_plain(x.tolist())
    if isinstance(x, (np.floating, np.integer)):
        return x.item()
    return x


if __name__ == "__main__":
    built = build()
    print("largest difference in the checks:", check(built))
    target = pathlib.Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(to_plain(built), indent=1) + "\n")
    print("wrote", target.name, "with", len(built), "cases")
