"""Agreement of two short answers: equal in normal form, or in words shared."""

import re
import string
import unicodedata
from collections import Counter

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)


def squad_normal(text: str) -> str:
    """A short answer without case, punctuation, articles and extra white space.

    SQuAD's `normalize_answer` (Rajpurkar et al. 2016). Deviations: Unicode
    compatibility forms are folded (NFKC) and case is folded, not lowered; all Unicode
    punctuation counts, not only ASCII's.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(
        sign
        for sign in folded
        if sign not in _PUNCTUATION and unicodedata.category(sign)[0] != "P"
    )
    return " ".join(_ARTICLE.sub(" ", kept).split())


def overlap_f1(text: str, gold: str) -> float:
    """Harmonic mean of the precision and recall of words in normal form, in [0, 1].

    SQuAD's F1 (Rajpurkar et al. 2016); where one side has no words, 1.0 if neither
    has, else 0.0 (SQuAD 2.0).
    """
    found, wanted = squad_normal(text).split(), squad_normal(gold).split()
    if not found or not wanted:
        return float(found == wanted)
    shared = (Counter(found) & Counter(wanted)).total()
    return 2 * shared / (len(found) + len(wanted))
