"""Parts of a text that IFEval's instructions count: sentences, words, bullets, titles.

Every function takes time linear in the text.
"""

import re

_END = re.compile(
    r"(?<![.!?…؟।])[.!?…؟।]++[\"'”’)\]*_]*+(?=\s|\Z)|(?<![。！？])[。！？]++"
)
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st vs e.g i.e cf vol fig approx dept est "
    "jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
_INITIALS = frozenset("ABCDEFGHJKLMNOPQRSTUVWXYZ")
_LIST_NUMBER = re.compile(r"[0-9]{1,3}|[a-z]")
_WORD = re.compile(r"\w+")
_CAPITAL_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*\]")
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_STRONG = re.compile(r"\*\*[^\n*]*\*\*")


def num_of_keyword(text: str, keyword: str) -> int:
    """How often the keyword is in the text, in any case, inside words or not."""
    return text.lower().count(keyword.lower())


def has_word(text: str, word: str) -> bool:
    """Whether a whole word of the text is this one, in any case."""
    pattern = rf"(?<!\w){re.escape(word)}(?!\w)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def num_words(text: str) -> int:
    """Runs of letters, digits and underscores ("don't" is two)."""
    return len(_WORD.findall(text))


def num_capital_words(text: str) -> int:
    """Words without a lower-case letter and with a capital one ("I" is one)."""
    return sum(word.isupper() for word in _CAPITAL_WORD.findall(text))


def num_sentences(text: str) -> int:
    """Runs of text up to ".", "!", "?" and their like before white space or the end.

    Each holds a letter or digit; the rest behind the last end is one, too. A full stop
    (or several) is no end where a lower-case letter follows, behind the abbreviations
    above, initials ("J. Smith") and numbers that begin a line ("1. First").
    """
    num, start = 0, 0
    for match in _END.finditer(text):
        if not match[0].strip(".…") and not _is_end(text, match.start(), match.end()):
            continue
        num += _WORD.search(text, start, match.start()) is not None
        start = match.end()
    return num + (_WORD.search(text, start) is not None)


def num_placeholders(text: str) -> int:
    """Parts in square brackets, each inside a line."""
    return len(_PLACEHOLDER.findall(text))


def num_bullets(text: str) -> int:
    """Lines that begin with "*", but not with "**", or with "-"."""
    lines = [line.lstrip() for line in text.split("\n")]
    return sum(
        line[:1] == "-" or (line[:1] == "*" and line[:2] != "**") for line in lines
    )


def num_highlights(text: str) -> int:
    """Parts in single or double asterisks, each inside a line and not empty."""
    found = _HIGHLIGHT.findall(text) + _STRONG.findall(text)
    return sum(bool(part.strip("*").strip()) for part in found)


def num_sections(text: str, splitter: str) -> int:
    """How often the splitter is followed by a number ("Section 2")."""
    return len(re.findall(re.escape(splitter) + r"\s?\d+", text))


def title(line: str) -> str:
    """What stands between the first "<<" and the last ">>" of a line, "" if nothing."""
    start, end = line.find("<<"), line.rfind(">>")
    return line[start:end].strip("<>").strip() if 0 <= start < end else ""


def first_word(paragraph: str) -> str:
    """The first word in lower case, up to its first sign of punctuation."""
    words = paragraph.split(maxsplit=1)
    if not words:
        return ""
    return re.split(r"[.,?!'\"]", words[0].lstrip("'\""))[0].lower()


def _is_end(text: str, stop: int, end: int) -> bool:
    """Whether full stops from `stop` to `end` end a sentence."""
    if text[end : end + 20].lstrip()[:1].islower():
        return False
    near = text[max(0, stop - 12) : stop]
    word = (near.split() or [""])[-1].lstrip("([\"'“‘*_")
    if word.lower() in _ABBREVIATIONS or (len(word) == 1 and word in _INITIALS):
        return False
    line = near.rpartition("\n")[2]
    begins_line = "\n" in near or stop <= 12
    return not (begins_line and _LIST_NUMBER.fullmatch(line.strip()))
