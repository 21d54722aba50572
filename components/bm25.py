"""BM25: which of a few texts answer a query best, by the words that they share."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

# Robertson & Zaragoza 2009 (on equation 3.15): 1.2 < k1 < 2 and 0.5 < b < 0.8
# are reasonably good in many circumstances.
K1 = 1.5
B = 0.75

_WORD = re.compile(r"[^\W_]+")


def words(text: str) -> list[str]:
    """Runs of letters and digits, compatibility forms (NFKC) and case folded away."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def bm25(
    query: str, texts: Sequence[str], *, k1: float = K1, b: float = B
) -> tuple[float, ...]:
    """Each text's score for a query, at least 0; exactly 0 where they share no word.

    Robertson & Zaragoza 2009, equation 3.15, over these texts as the whole collection:
    the sum over the query's distinct words of
    ``idf * tf / (tf + k1 * (1 - b + b * length / mean length))``. Deviation: idf is
    ``log(1 + (N - n + 0.5) / (n + 0.5))``, which stays positive for a word that most of
    the N texts hold; among ten texts that is common, and theirs would be negative.
    """
    counts = [Counter(words(text)) for text in texts]
    lengths = [count.total() for count in counts]
    if not any(lengths):
        return (0.0,) * len(texts)
    mean = sum(lengths) / len(lengths)
    idf = {}
    for word in words(query):
        holding = sum(word in count for count in counts)
        idf[word] = math.log1p((len(texts) - holding + 0.5) / (holding + 0.5))
    scores = []
    for count, length in zip(counts, lengths, strict=True):
        damping = k1 * (1.0 - b + b * length / mean)
        terms = [
            weight * count[word] / (count[word] + damping)
            for word, weight in idf.items()
            if word in count
        ]
        # exact, so that equal texts and reordered queries tie
        scores.append(math.fsum(terms))
    return tuple(scores)


def best(scores: Sequence[float], num: int) -> tuple[int, ...]:
    """Positions of the `num` highest scores, best first; of equal ones the first."""
    return tuple(sorted(range(len(scores)), key=lambda at: -scores[at])[:num])
