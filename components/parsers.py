"""Answer extraction: pure total functions from a model's text to an answer."""

import re
import unicodedata
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(
    r"[-−]?[$€£]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
    r"|[-−]?[$€£]?(?<![0-9])\.[0-9]+"
)
_SIGNS = str.maketrans({"−": "-", "$": None, "€": None, "£": None, ",": None})
_MARK = re.compile(r"####[^\S\n]*([^\n]*)")


def canonical_number(text: str) -> str | None:
    """The one way to write the first number in the text: "$1,250.50" is "1250.5".

    Thousands separators, a currency sign, trailing zeros and a negative zero's sign are
    dropped. A hyphen counts as a minus only where no letter, digit or closing bracket
    stands before it. None when the text holds no number.
    """
    numbers = _numbers(text)
    return numbers[0] if numbers else None


def final_number(text: str) -> str | None:
    """The number that a worked solution ends in, as `canonical_number` writes it.

    The number after the last "####" that has one (GSM8K's mark; Cobbe et al. 2021),
    else the last number of the text, else None.
    """
    for line in reversed(_MARK.findall(text)):
        number = canonical_number(line)
        if number is not None:
            return number
    numbers = _numbers(text)
    return numbers[-1] if numbers else None


def normal_answer(text: str) -> str:
    """A short answer without what does not change it.

    Unicode compatibility forms, case, runs of white space, surrounding quotes and a
    closing full stop are folded away. Inner signs stay: "-2" is not "2".
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    folded = " ".join(folded.split())
    previous = None
    while previous != folded:
        previous = folded
        folded = folded.strip().strip("\"'`“”‘’").removesuffix(".")
    return folded


def _numbers(text: str) -> list[str]:
    found = []
    for match in _NUMBER.finditer(text):
        literal = match.group()
        before = text[match.start() - 1] if match.start() else ""
        if literal[0] in "-−" and before and (before.isalnum() or before in ")]"):
            literal = literal[1:]
        number = _canonical(literal)
        if number is not None:
            found.append(number)
    return found


def _canonical(literal: str) -> str | None:
    try:
        value = Decimal(literal.translate(_SIGNS))
    except InvalidOperation:
        return None
    plain = f"{value:f}"
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return "0" if plain in ("", "-", "-0", "0") else plain
