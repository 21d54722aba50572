"""Multiple choice: the letter that an answer chooses."""

import re
from collections.abc import Sequence

from components.matching import squad_normal

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DRESS = (
    r"[\s*_`$(\[{\"'“‘]*+(?:\\(?:boxed|text)\{)?+(?:(?:option|choice)[ \t]++)?+[(\[*]*+"
)
_PHRASE = re.compile(
    r"\b(?:answer|choice|option)(?:[ \t]++(?:is|was|would[ \t]be|must[ \t]be)\b"
    rf"|[*_ \t]*+[:=])[*: \t]*+{_DRESS}(?P<letter>[A-Za-z])(?P<after>[^\w'’]|\Z)"
    r"(?P<next>[ \t]?\w?)",
    re.IGNORECASE,
)
_START = re.compile(
    rf"\A{_DRESS}(?P<letter>[A-Za-z])(?P<after>[.):\]}}*_,`$]|[ \t]*+(?:\n|\Z))"
)
_BRACKETED = re.compile(r"(?<![\w(])\((?P<letter>[A-Z])\)")
_ALONE = re.compile(r"^[ \t]*+[*(]*+(?P<letter>[A-Z])[).:*]*+[ \t]*+$", re.MULTILINE)


def chosen_letter(text: str, options: Sequence[str]) -> str | None:
    """The capital letter of the option that the text chooses; None if none or several.

    options: texts of the options A, B, ..., at most 26. The first rule that finds
    letters decides; where it finds two that differ, or a letter followed by the text of
    another option, or a letter beyond the options, nothing is chosen:
    - after "answer is", "answer:", "option:" and the like, in either case; a small "a"
      before a word is an article;
    - at the start, "(B)", "B.", "b)", or "B" alone in its line;
    - "(B)" anywhere, or a line of a capital letter alone;
    - the text is an option's, or holds the text of just one (`squad_normal`); an option
      inside a longer one that is held, too, does not count.
    """
    valid = _LETTERS[: len(options)]
    normal = [squad_normal(option) for option in options]
    for found in (_phrases(text), _starts(text), _marked(text)):
        if found:
            letters = {letter for letter, _ in found}
            if len(letters) > 1 or not letters <= set(valid):
                return None
            (letter,) = letters
            rest = {squad_normal(rest) for _, rest in found} & set(normal) - {""}
            own = normal[valid.index(letter)]
            return letter if rest <= {own} else None
    held = _held(squad_normal(text), normal)
    return valid[held[0]] if len(held) == 1 else None


def _phrases(text: str) -> list[tuple[str, str]]:
    found = []
    for match in _PHRASE.finditer(text):
        letter, after = match["letter"], match["after"]
        worded = after == " " and match["next"].strip() != ""
        # "the answer is a dog", "the answer is b because": only capitals before words
        if not (worded and letter.islower()):
            found.append((letter.upper(), _rest(text, match.end("letter"))))
    return found


def _starts(text: str) -> list[tuple[str, str]]:
    match = _START.match(text)
    if not match:
        return []
    return [(match["letter"].upper(), _rest(text, match.end("letter")))]


def _marked(text: str) -> list[tuple[str, str]]:
    found = [*_BRACKETED.finditer(text), *_ALONE.finditer(text)]
    return [(m["letter"], _rest(text, m.end("letter"))) for m in found]


def _rest(text: str, start: int) -> str:
    """What follows a letter in its line, at most 200 characters of it."""
    return text[start : start + 200].split("\n", 1)[0]


def _held(text: str, options: list[str]) -> list[int]:
    """Indices of the options whose words stand in the text, in that order."""
    if text in options:
        return [i for i, option in enumerate(options) if option == text]
    padded = f" {text} "
    held = []
    # longest first: what an option covers does not count for a shorter one
    for i in sorted(range(len(options)), key=lambda i: -len(options[i])):
        if options[i] and f" {options[i]} " in padded:
            held.append(i)
            twins = [j for j in held if options[j] == options[i]]
            if len(twins) == 1 and options.count(options[i]) == 1:
                padded = padded.replace(f" {options[i]} ", "  ")
    return held
