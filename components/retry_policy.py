"""When an attempt is repeated, and how."""

from dataclasses import dataclass

WAYS = ("same", "feedback", "template")


@dataclass(frozen=True)
class RetryPolicy:
    """One candidate of the retry slot.

    attempts: at most so many, the first one counted; how: same asks the same again,
    feedback shows the model its attempt and what was wrong with it, template asks anew
    with the next template of the pool; min_confidence: an answer whose confidence is
    lower is refused, too (0 accepts all; confidence is the mean probability of its
    tokens, in [0, 1]); temperature: of every attempt after the first, which is as the
    run says.

    An attempt is repeated when it gave no answer, one that its output policy refuses,
    or one of too little confidence. Where attempts run out, the most confident answer
    that was refused for its confidence alone is taken.

    Raises ValueError for a value out of range.
    """

    name: str
    attempts: int = 1
    how: str = "same"
    min_confidence: float = 0.0
    temperature: float = 0.7

    def __post_init__(self) -> None:
        where = f"retry policy {self.name!r}"
        if not self.name.strip():
            raise ValueError("retry policy: expected a name, got none; name it.")
        if not 1 <= self.attempts <= 16:
            raise ValueError(
                f"{where}: expected 1 to 16 attempts, got {self.attempts}; a bound "
                "keeps the cost of one episode known."
            )
        if self.how not in WAYS:
            raise ValueError(
                f"{where}: expected how among {', '.join(WAYS)}, got {self.how!r}."
            )
        if not 0.0 <= self.min_confidence <= 1.0:
            raise ValueError(
                f"{where}: expected min_confidence in [0, 1], got "
                f"{self.min_confidence}."
            )
        if not 0.0 <= self.temperature <= 10.0:
            raise ValueError(
                f"{where}: expected temperature in [0, 10], got {self.temperature}."
            )
        if self.attempts > 1 and self.how == "same" and self.temperature == 0.0:
            raise ValueError(
                f"{where}: expected a temperature above 0 where the same is asked "
                "again, got 0: a greedy answer never changes; raise it."
            )


def feedback(problem: str) -> str:
    """The user turn that answers a refused attempt."""
    return f"That answer cannot be used: {problem}. Try again."
