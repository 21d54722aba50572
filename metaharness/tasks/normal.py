"""Normal form of a question, for finding equal and nearly equal ones."""

import re
import unicodedata

# Words and numbers stay whole ("3.5", "don't"); every other sign is a token of its own,
# since "3 + 4" is not "3 - 4".
_TOKEN = re.compile(r"[^\W_]+(?:[.,'’][^\W_]+)*|[^\w\s]|_")
# Signs that only punctuate, when they follow a word and end it ("5!" is a factorial).
_CLOSING = re.compile(
    r"(?:(?<=[\w)\]\"'”’])[.,;:?]+|(?<=[^\W\d_])[!]+[.,;:?!]*)(?=\s|$)"
)
_QUOTES = str.maketrans(dict.fromkeys("“”„«»", '"') | dict.fromkeys("‘’‚", "'"))


def normal_question(text: str) -> str:
    """A question without what does not change it.

    Unicode compatibility forms, case, kinds of quotes, runs of white space and
    punctuation at the end of words are folded away; signs inside an expression stay.
    """
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_QUOTES)
    return " ".join(_CLOSING.sub("", folded).split())


def split_normal(normal: str) -> tuple[str, ...]:
    """Words, numbers and signs of a normal form, in order."""
    return tuple(_TOKEN.findall(normal))
