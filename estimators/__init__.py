"""Choice distributions and gradient estimators for discrete choices.

Which 2 of 5 candidates give the lowest loss? Values of the loss are enough to learn it:

    import jax
    import jax.numpy as jnp
    import estimators as es

    family = es.Family("subset", n=5, k=2)
    estimator = es.linear_proxy(family, samples=8, use_slope=False)

    def objective(draw, theta):  # one loss per row of draw.outcomes, int32 [rows, k]
        cost = jnp.array([3.0, 0.0, 2.0, 1.0, 4.0])
        return cost[draw.outcomes].sum(-1)

    step = jax.jit(es.value_and_grad(estimator, objective))
    logits = jnp.zeros(5)
    state = estimator.init(jax.random.key(0), logits)
    for count in range(20):
        found = step(jax.random.key(count), logits, state)
        logits, state = logits - found.logits_grad, found.state
    best = family.distribution(logits).mode()  # [1, 3]
"""

from estimators.catalogue import ESTIMATORS, make
from estimators.categorical import Categorical
from estimators.combine import combine
from estimators.diagnose import Diagnosis, diagnose
from estimators.exact import exact
from estimators.family import Family
from estimators.gumbel_rao import gumbel_rao
from estimators.gumbel_softmax import gumbel_softmax
from estimators.imle import imle
from estimators.interface import Credit, Draw, Estimator, Memo, Spec
from estimators.linear_proxy import linear_proxy
from estimators.masking import EXCLUDED
from estimators.network import Network
from estimators.perturbed_marginals import perturbed_marginals
from estimators.product import Product
from estimators.proxy import proxy
from estimators.ranking import Ranking
from estimators.reinforce import reinforce
from estimators.reinmax import reinmax
from estimators.relax import relax
from estimators.simple import simple
from estimators.soft_subset import soft_subset
from estimators.st_gumbel_softmax import st_gumbel_softmax
from estimators.step import ask, evaluate, tell, value_and_grad
from estimators.straight_through import straight_through
from estimators.subset import Subset
from estimators.sum_and_sample import sum_and_sample
from estimators.tasks import over_tasks
from estimators.unordered_set import unordered_set

__all__ = [
    "ESTIMATORS",
    "EXCLUDED",
    "Categorical",
    "Credit",
    "Diagnosis",
    "Draw",
    "Estimator",
    "Family",
    "Memo",
    "Network",
    "Product",
    "Ranking",
    "Spec",
    "Subset",
    "ask",
    "combine",
    "diagnose",
    "evaluate",
    "exact",
    "gumbel_rao",
    "gumbel_softmax",
    "imle",
    "linear_proxy",
    "make",
    "over_tasks",
    "perturbed_marginals",
    "proxy",
    "reinforce",
    "reinmax",
    "relax",
    "simple",
    "soft_subset",
    "st_gumbel_softmax",
    "straight_through",
    "sum_and_sample",
    "tell",
    "unordered_set",
    "value_and_grad",
]
