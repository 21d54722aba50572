"""Answer extraction: pure total functions from a model's text to an answer."""

import unicodedata

from components.numbers import find_answer, plain_text, read_numbers, write_number


def canonical_number(text: str) -> str | None:
    """The one way to write the first number in the text: "$1,250.50" is "1250.5".

    `read_numbers` says what a number is, `write_number` how it is written. None when
    the text holds no number, or one too long to be read.
    """
    first = next(read_numbers(plain_text(text)), None)
    if first is None or first.value is None:
        return None
    return write_number(first.value)


def final_number(text: str) -> str | None:
    """The number that a worked solution answers with, as `canonical_number` writes it.

    `find_answer` says which one; equal texts are equal values, exactly. None when there
    is none.
    """
    value = find_answer(text).value
    return None if value is None else write_number(value)


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
