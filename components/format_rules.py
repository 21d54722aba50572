"""IFEval's instructions, one function each: does a text have the form asked for?

From the descriptions in Zhou et al. 2023 (Instruction-Following Evaluation for Large
Language Models, table 1) and what the published prompts say. Deviations: a keyword is a
text, never a pattern; sentences and words are found by the rules of `format_counts`
instead of NLTK's models, languages by `languages`.

Every function is total and takes time linear in the text.
"""

import json
import operator
import re
from collections.abc import Callable, Sequence

from components import format_counts as counts
from components.languages import detect_language, may_be_english

RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "at least": operator.ge,
    "less than": operator.lt,
}
CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_FENCE = re.compile(r"```(?:json)?", re.IGNORECASE)
_STARS = re.compile(r"\s?\*\*\*\s?")
_BLANK_LINE = re.compile(r"\n\n")


def has_keywords(text: str, *, keywords: Sequence[str]) -> bool:
    """Each keyword is in the text, in any case, inside a word or not."""
    return all(counts.num_of_keyword(text, keyword) for keyword in keywords)


def keyword_frequency(
    text: str, *, keyword: str, frequency: int, relation: str
) -> bool:
    """The keyword is there so many times, in any case, inside a word or not."""
    return RELATIONS[relation](counts.num_of_keyword(text, keyword), frequency)


def no_forbidden_words(text: str, *, forbidden_words: Sequence[str]) -> bool:
    """None of them is in the text as a whole word, in any case."""
    return not any(counts.has_word(text, word) for word in forbidden_words)


def letter_frequency(
    text: str, *, letter: str, let_frequency: int, let_relation: str
) -> bool:
    """The letter is there so many times, in any case."""
    found = text.lower().count(letter.lower())
    return RELATIONS[let_relation](found, let_frequency)


def in_language(text: str, *, language: str) -> bool:
    """All of the answer is in the language: none other is found for the whole."""
    return detect_language(text) == language


def number_sentences(text: str, *, num_sentences: int, relation: str) -> bool:
    """As many sentences as `num_sentences` counts."""
    return RELATIONS[relation](counts.num_sentences(text), num_sentences)


def number_words(text: str, *, num_words: int, relation: str) -> bool:
    """As many runs of letters, digits and underscores."""
    return RELATIONS[relation](counts.num_words(text), num_words)


def number_paragraphs(text: str, *, num_paragraphs: int) -> bool:
    """Exactly so many paragraphs, with "***" between them and none of them empty.

    A divider before the first or after the last paragraph does no harm.
    """
    parts = [part.strip() for part in _STARS.split(text)]
    parts = parts[not parts[0] :]
    parts = parts[: len(parts) - (bool(parts) and not parts[-1])]
    return all(parts) and len(parts) == num_paragraphs


def nth_paragraph_first_word(
    text: str, *, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """Exactly so many paragraphs, two line breaks apart, and how one of them begins.

    The word counts without case, without quotes before it, and up to the first sign of
    punctuation. nth_paragraph: from 1, in the text as it is split, empty ones included.
    """
    parts = [part.strip() for part in _BLANK_LINE.split(text)]
    whole = sum(map(bool, parts)) == num_paragraphs
    if not (whole and 1 <= nth_paragraph <= num_paragraphs):
        return False
    return counts.first_word(parts[nth_paragraph - 1]) == first_word.lower()


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """At least so many placeholders in square brackets, as "[address]"."""
    return counts.num_placeholders(text) >= num_placeholders


def has_postscript(text: str, *, postscript_marker: str) -> bool:
    """The marker ("P.S.", "P.P.S") is in the text, in any case.

    White space may follow each of its full stops.
    """
    pattern = re.escape(postscript_marker.lower()).replace(r"\.", r"\.\s?")
    return re.search(pattern, text.lower()) is not None


def number_bullets(text: str, *, num_bullets: int) -> bool:
    """Exactly so many lines that begin with "*" (not "**") or "-"."""
    return counts.num_bullets(text) == num_bullets


def number_highlights(text: str, *, num_highlights: int) -> bool:
    """At least so many *highlighted* or **highlighted** parts, each inside a line."""
    return counts.num_highlights(text) >= num_highlights


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """At least so many sections, each begun by the splitter and a number."""
    return counts.num_sections(text, section_spliter) >= num_sections


def constrained_response(text: str) -> bool:
    """One of the three answers that are allowed is in the text."""
    return any(answer in text for answer in CONSTRAINED)


def is_json(text: str) -> bool:
    """All of the text is one JSON value, in a fence or not."""
    text = text.strip()
    opening = _FENCE.match(text)
    if opening:
        text = text[opening.end() :]
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def has_title(text: str) -> bool:
    """A title in double angular brackets, "<<title>>", on one line, not empty."""
    return any(map(counts.title, text.split("\n")))


def two_responses(text: str) -> bool:
    """Two different answers with six asterisks between them.

    A divider before the first or after the second does no harm.
    """
    parts = [part.strip() for part in text.split("******")]
    if not all(parts[1:-1]):
        return False
    answers = [part for part in parts if part]
    return len(answers) == 2 and answers[0] != answers[1]


def repeats_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    """The text begins with the request, word for word, in any case."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def ends_with(text: str, *, end_phrase: str) -> bool:
    """The text ends with the phrase, in any case, before quotes at most."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def in_quotes(text: str) -> bool:
    """All of the text stands in double quotes."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def all_capital(text: str) -> bool:
    """English, and no lower-case letter."""
    return text.isupper() and may_be_english(text)


def all_lowercase(text: str) -> bool:
    """English, and no capital letter."""
    return text.islower() and may_be_english(text)


def capital_words(text: str, *, capital_frequency: int, capital_relation: str) -> bool:
    """So many words in capital letters only."""
    found = counts.num_capital_words(text)
    return RELATIONS[capital_relation](found, capital_frequency)


def no_comma(text: str) -> bool:
    """No comma at all."""
    return "," not in text
