"""Choice distributions and gradient estimators for discrete choices."""

from estimators.catalogue import ESTIMATORS, make
from estimators.categorical import Categorical
from estimators.combine import combine
from estimators.exact import exact
from estimators.family import Family
from estimators.gumbel_softmax import gumbel_softmax
from estimators.interface import Credit, Draw, Estimator, Memo, Spec
from estimators.linear_proxy import linear_proxy
from estimators.masking import EXCLUDED
from estimators.perturbed_marginals import perturbed_marginals
from estimators.product import Product
from estimators.ranking import Ranking
from estimators.reinforce import reinforce
from estimators.simple import simple
from estimators.step import ask, evaluate, tell, value_and_grad
from estimators.straight_through import straight_through
from estimators.subset import Subset
from estimators.tasks import over_tasks

__all__ = [
    "ESTIMATORS",
    "EXCLUDED",
    "Categorical",
    "Credit",
    "Draw",
    "Estimator",
    "Family",
    "Memo",
    "Product",
    "Ranking",
    "Spec",
    "Subset",
    "ask",
    "combine",
    "evaluate",
    "exact",
    "gumbel_softmax",
    "linear_proxy",
    "make",
    "over_tasks",
    "perturbed_marginals",
    "reinforce",
    "simple",
    "straight_through",
    "tell",
    "value_and_grad",
]
