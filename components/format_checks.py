"""IFEval's instructions by id (Zhou et al. 2023): which there are, what they take, and
whether a text follows them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from components import format_rules as rules
from components.languages import LANGUAGES

# Kinds of arguments, and what each must be.
_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "count": (
        "a whole number from 0",
        lambda value: type(value) is int and value >= 0,
    ),
    "language": (
        f"one of {', '.join(LANGUAGES)}",
        lambda value: isinstance(value, str) and value in LANGUAGES,
    ),
    "letter": (
        "one character",
        lambda value: isinstance(value, str) and len(value) == 1,
    ),
    "relation": (
        " or ".join(map(repr, rules.RELATIONS)),
        lambda value: isinstance(value, str) and value in rules.RELATIONS,
    ),
    "text": (
        "text",
        lambda value: isinstance(value, str) and bool(value.strip()),
    ),
    "texts": (
        "a list of texts",
        lambda value: (
            isinstance(value, list)
            and bool(value)
            and all(isinstance(each, str) and each.strip() for each in value)
        ),
    ),
}


class Check(NamedTuple):
    """rule: of a text and, by name, the arguments; arguments: their kinds."""

    rule: Callable[..., bool]
    arguments: Mapping[str, str] = {}


CHECKS: dict[str, Check] = {
    "change_case:capital_word_frequency": Check(
        rules.capital_words,
        {"capital_frequency": "count", "capital_relation": "relation"},
    ),
    "change_case:english_capital": Check(rules.all_capital),
    "change_case:english_lowercase": Check(rules.all_lowercase),
    "combination:repeat_prompt": Check(
        rules.repeats_prompt, {"prompt_to_repeat": "text"}
    ),
    "combination:two_responses": Check(rules.two_responses),
    "detectable_content:number_placeholders": Check(
        rules.number_placeholders, {"num_placeholders": "count"}
    ),
    "detectable_content:postscript": Check(
        rules.has_postscript, {"postscript_marker": "text"}
    ),
    "detectable_format:constrained_response": Check(rules.constrained_response),
    "detectable_format:json_format": Check(rules.is_json),
    "detectable_format:multiple_sections": Check(
        rules.multiple_sections, {"section_spliter": "text", "num_sections": "count"}
    ),
    "detectable_format:number_bullet_lists": Check(
        rules.number_bullets, {"num_bullets": "count"}
    ),
    "detectable_format:number_highlighted_sections": Check(
        rules.number_highlights, {"num_highlights": "count"}
    ),
    "detectable_format:title": Check(rules.has_title),
    "keywords:existence": Check(rules.has_keywords, {"keywords": "texts"}),
    "keywords:forbidden_words": Check(
        rules.no_forbidden_words, {"forbidden_words": "texts"}
    ),
    "keywords:frequency": Check(
        rules.keyword_frequency,
        {"keyword": "text", "frequency": "count", "relation": "relation"},
    ),
    "keywords:letter_frequency": Check(
        rules.letter_frequency,
        {"letter": "letter", "let_frequency": "count", "let_relation": "relation"},
    ),
    "language:response_language": Check(rules.in_language, {"language": "language"}),
    "length_constraints:nth_paragraph_first_word": Check(
        rules.nth_paragraph_first_word,
        {"num_paragraphs": "count", "nth_paragraph": "count", "first_word": "text"},
    ),
    "length_constraints:number_paragraphs": Check(
        rules.number_paragraphs, {"num_paragraphs": "count"}
    ),
    "length_constraints:number_sentences": Check(
        rules.number_sentences, {"num_sentences": "count", "relation": "relation"}
    ),
    "length_constraints:number_words": Check(
        rules.number_words, {"num_words": "count", "relation": "relation"}
    ),
    "punctuation:no_comma": Check(rules.no_comma),
    "startend:end_checker": Check(rules.ends_with, {"end_phrase": "text"}),
    "startend:quotation": Check(rules.in_quotes),
}


def unsupported(instruction: str, arguments: Mapping[str, Any]) -> str:
    """Why this instruction cannot be checked; "" where it can.

    Arguments that it does not take, and null for any, are passed over: one copy of the
    data gives all of them for every instruction.
    """
    check = CHECKS.get(instruction)
    if check is None:
        return f"expected an instruction among {', '.join(CHECKS)}, got {instruction!r}"
    for name, kind in check.arguments.items():
        what, is_kind = _KINDS[kind]
        if not is_kind(arguments.get(name)):
            got = repr(arguments.get(name))[:60]
            return f"{instruction}: expected {what} as {name!r}, got {got}"
    return ""


def follows(text: str, instruction: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a text follows an instruction that is not `unsupported`.

    A text of white space follows none.
    """
    check = CHECKS[instruction]
    given = {name: arguments[name] for name in check.arguments}
    return bool(text.strip()) and check.rule(text, **given)
