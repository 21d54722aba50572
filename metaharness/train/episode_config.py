"""Settings of graded episodes: where policies are learned, and in the comparison."""

from dataclasses import dataclass

from metaharness.train.ranges import check_name, check_range


@dataclass(frozen=True, kw_only=True)
class EpisodeConfig:
    """How episodes are run and priced, where the harness has policies.

    The loss of an episode is 1 - reward + the price of its tokens.
    """

    items: int = 8
    """training items of each task that every drawn harness answers in an update"""
    samples: int = 1
    """episodes of each harness and item"""
    temperature: float = 0.0
    """of first attempts; 0 is greedy"""
    token_price: float = 0.0
    """reward that 1,000 prompt or written tokens cost"""
    estimator: str = "reinforce"
    """of the policies: reinforce, linear_proxy or proxy"""
    prompt_loss: str = "likelihood"
    """what exemplars and template learn from: likelihood (nats of the gold answer) or
    episode"""
    credit: str = "decision"
    """what a slot learns from: decision (what came after it, the other slots' known
    effects taken out) or episode (all of it)"""
    label_bias: bool = True
    """fit the label bias of a deployed policy that chooses among labels, on the
    training items, if it has none"""
    window: int = 256
    """rows that the effects of the other slots are fitted on"""
    at_once: int = 256
    """episodes that are open at the same time"""
    tokens_at_once: int = 16384
    """tokens of one batch of generation, padding included; memory grows with it"""

    def __post_init__(self) -> None:
        for name in ("items", "samples", "window", "at_once", "tokens_at_once"):
            check_range(f"episodes.{name}", getattr(self, name), 1)
        check_range("episodes.temperature", self.temperature, 0, 10)
        check_range("episodes.token_price", self.token_price, 0)
        check_name(
            "episodes.estimator",
            self.estimator,
            ("reinforce", "linear_proxy", "proxy"),
        )
        check_name("episodes.prompt_loss", self.prompt_loss, ("likelihood", "episode"))
        check_name("episodes.credit", self.credit, ("decision", "episode"))
