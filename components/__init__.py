"""Text and policy of a harness: pools, exemplars, templates and answer parsers."""

from components.exemplars import KINDS, Exemplar, as_exemplars
from components.pools import check_pool
from components.quality import corrupt, mixed_pool
from components.templates import NAMED, Template, named

__all__ = [
    "KINDS",
    "NAMED",
    "Exemplar",
    "Template",
    "as_exemplars",
    "check_pool",
    "corrupt",
    "mixed_pool",
    "named",
]
