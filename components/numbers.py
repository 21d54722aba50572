"""Numbers in text: exact values, and which of them is the answer."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

# Longest number that is read, in characters as it is written; GSM8K's have at most 10.
LONGEST = 100

_DIGITS = (
    r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,20}(?![0-9])"
    r"|[0-9]{1,2}(?:,[0-9]{2}){1,6},[0-9]{3}(?![0-9])|[0-9]++)(?:\.[0-9]++)?"
)
_NUMBER = re.compile(
    # dates, versions, times, ratios: no number at all
    r"(?P<chain>[0-9]++(?:(?:\.[0-9]++){2,}+|(?:/[0-9]++){2,}+|(?::[0-9]++)++))"
    r"|(?P<minus>-)?(?:[$€£¥₹] ?)?(?P<late_minus>-)?"
    rf"(?:(?P<whole>{_DIGITS}) (?P<part>[0-9]++) ?/ ?(?P<parts>[0-9]++)(?![./]?[0-9])"
    rf"|(?P<value>{_DIGITS}|(?<![0-9])\.[0-9]++)"
    rf"(?: ?/ ?[$€£¥₹]?(?P<below>{_DIGITS})"
    r"|[eE](?P<exponent>[-+]?[0-9]{1,9})(?!\w)"
    r"| ?[x×*·] ?10 ?(?:\^|\*\*) ?[{(]?(?P<power>[-+]?[0-9]{1,9})[})]?)?)"
    r"(?: ?(?P<scale>thousand|million|billion|trillion)\b)?",
    re.IGNORECASE,
)
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CURRENCY_CODE = re.compile(r"(?:\b(?:USD|US|EUR|GBP|INR|Rs))\Z", re.IGNORECASE)
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b", re.IGNORECASE)

# Sign, digit and space variants; an em dash is punctuation.
_SIGNS = str.maketrans(
    dict.fromkeys("−﹣－‐‑–", "-")
    | {"—": " ", "＄": "$", "，": ",", "．": ".", "⁄": "/", "∕": "/"}
    | {"٫": ".", "٬": ",", "＝": "=", "％": "%", "＃": "#", "：": ":"}
)
_UPPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SPACED_GROUP = re.compile(
    r"(?<=[0-9])(?:[\u00a0\u202f\u2009]|\\[,;: ]|\{,\}|,\\!)(?=[0-9]{3}(?![0-9]))"
)
_SPACE = re.compile(r"[\u00a0\u202f\u2009]|\\[,;: !]|~")
_FRAC = re.compile(
    r"(?P<before>[0-9]?)\\[dt]?frac(?:\{ ?(?P<above>[0-9.,]{1,40}) ?\}"
    r"\{ ?(?P<below>[0-9.,]{1,40}) ?\}|(?P<short_above>[0-9])(?P<short_below>[0-9]))"
)
_TIMES = re.compile(r"\\(?:times|cdot)\b ?")
_RAISED = re.compile(r"(?<=10)[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]++")

# Between a mark and its number: emphasis, LaTeX, brackets, a hedge.
_DRESS = (
    r"(?:[\s*_`($\\{\[\"'=:≈]|boxed|text(?:bf)?|mathbf"
    r"|(?:about|approximately|approx\.?|equal to|exactly|simply|now)\b)*+"
    r"(?=[-$€£¥₹]?[-$€£¥₹.]?[0-9])"
)
_MARK = re.compile(rf"^[ \t*>]*+####(?!#){_DRESS}", re.M)
_INNER_MARK = re.compile(r"(?<=[^\s#*>])[ \t]*+####(?!#)")
_HEADING = re.compile(r"[0-9]{1,2}[.):][*]*[ \t]+[^\W\d]")
_BOXED = re.compile(r"\\(?:boxed|fbox) ?\{")
_PHRASE = re.compile(
    r"\banswer(?P<verb>[ \t]+(?:is|was|=|will be|would be|must be|equals)\b"
    rf"|[*_ \t]*+[:=]){_DRESS}",
    re.IGNORECASE,
)
_END = re.compile(r"\n|[.!?](?=\s|$)")
_NEXT = re.compile(
    r"^[ \t*#]*(?:question|q|problem|exercise|human|user|instruction)[ \t]*[0-9]*[*]*:"
    r"|<\|(?:im_start|im_end|endoftext|eot_id)\|>|(?-i:Question:)",
    re.M | re.IGNORECASE,
)


class Number(NamedTuple):
    """A number in a text: start, end (of the plain text), value, None if too long."""

    start: int
    end: int
    value: Fraction | None


class Answer(NamedTuple):
    """The number that a text answers with, and the rule that chose it."""

    value: Fraction | None
    rule: str


def plain_text(text: str) -> str:
    """The text with one way to write digits, signs, fractions and thousands.

    Unicode decimal digits become ASCII, minus variants "-", "½" and `\\frac{1}{2}`
    "1/2", `\\times` "×", "10³" "10^3"; `{,}`, `\\,` and hard spaces before a group of
    three digits become ",".
    """
    if not text.isascii():
        text = _RAISED.sub(lambda match: "^" + match[0].translate(_UPPER), text)
        text = "".join(_plain_sign(text)).translate(_SIGNS)
    text = _SPACED_GROUP.sub(",", text)
    text = _TIMES.sub("×", _FRAC.sub(_fraction, text))
    return _SPACE.sub(" ", text)


def read_numbers(plain: str) -> Iterator[Number]:
    """The numbers of a `plain_text`, from left to right, with exact values.

    Read: thousands separators, currency, decimals, fractions, mixed numbers,
    scientific notation, "million" and the like. "50%" is 50. A hyphen is a minus only
    where no letter, digit or closing bracket stands before it. Not numbers: digits
    inside a word ("x2"), exponents ("^2"), ordinals, dates, clock times, ratios and
    versions. A number longer than `LONGEST` or divided by zero has the value None.
    """
    for match in _NUMBER.finditer(plain):
        start, end = match.span()
        before = plain[max(0, start - 4) : start]
        if match["chain"] or _inside_word(before) or _ORDINAL.match(plain, end):
            continue
        negative = bool(match["late_minus"]) or (
            bool(match["minus"])
            and not (before and (before[-1].isalnum() or before[-1] in ")]}%"))
        )
        if match["whole"] and not _below(match["part"], match["parts"]):
            # "2 10/5": two numbers
            middle = match.end("whole")
            yield Number(start, middle, _value(match["whole"], negative=negative))
            over = _value(match["part"], below=match["parts"])
            yield Number(middle + 1, end, over)
            continue
        value = _value(
            match["whole"] or match["value"],
            below=match["below"],
            power=int(match["exponent"] or match["power"] or 0),
            scale=_SCALES.get((match["scale"] or "").lower(), 0),
            negative=negative,
            part=(match["part"], match["parts"]) if match["whole"] else None,
        )
        yield Number(start, end, value)


def find_answer(text: str) -> Answer:
    """The number that a worked solution answers with; total, in linear time.

    Only the text before the next problem counts ("Question:", a chat turn), unless
    no number stands before it. Then the first rule that finds a number:
    - "mark": after the first "####" that starts a line (GSM8K; Cobbe et al. 2021): what
      follows a solution's end is another solution. Headings ("#### 1. Total") are none;
    - "inner mark": after the last "####" inside a line;
    - "boxed": in the last `\\boxed{}`;
    - "phrase": right after the last "answer is";
      "colon": or "answer:", if its sentence holds no other number ("Answer: 3 apples
      and 9 pears make 12" is a solution);
    - "last": the last number;
    - "none".
    In "5 + 7 = 12" behind a mark, in a box or behind a phrase, the number after the
    last "=" counts.
    """
    plain = plain_text(text)
    numbers = list(read_numbers(plain))
    if not numbers:
        return Answer(None, "none")
    following = _NEXT.search(plain, numbers[0].end)
    if following:
        numbers = [number for number in numbers if number.end <= following.start()]
        plain = plain[: following.start()]
    scan = _scan(plain, numbers)
    for rule, places in _places(plain):
        for place in places:
            number = _after(scan, place, rule)
            if number is not None:
                return Answer(number.value, rule)
    return Answer(numbers[-1].value, "last")


def write_number(value: Fraction) -> str:
    """The one way to write a value: "1250.5", "-3"; "1/3" where decimals do not end.

    One with too many decimals to be read again is written as a fraction, too.
    """
    twos = (value.denominator & -value.denominator).bit_length() - 1
    rest, fives = value.denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    if places + len(str(value.numerator)) > LONGEST:
        return f"{value.numerator}/{value.denominator}"
    digits = str(abs(value.numerator) * 10**places // value.denominator)
    if places:
        digits = digits.zfill(places + 1)
        digits = f"{digits[:-places]}.{digits[-places:]}"
    return "-" * (value < 0) + digits


def _plain_sign(text: str) -> Iterator[str]:
    previous = ""
    for sign in text:
        if sign.isdecimal():
            yield str(unicodedata.decimal(sign))
        elif not sign.isascii() and unicodedata.category(sign) == "No":
            form = unicodedata.normalize("NFKC", sign)
            # "1½" is one and a half, "5²" is no 52
            fraction = "⁄" in form and form[-1].isdecimal()
            yield (" " * previous.isdecimal() + form) if fraction else sign
        else:
            yield sign
        previous = sign


def _fraction(match: re.Match[str]) -> str:
    above = match["above"] or match["short_above"]
    below = match["below"] or match["short_below"]
    before = match["before"]
    return f"{before}{' ' * bool(before)}{above}/{below} "


def _inside_word(before: str) -> bool:
    """Whether digits behind these characters belong to a word or are an exponent."""
    last = before[-1:]
    if last == "^":
        return True
    if last == "_":
        return before[-2:-1].isalnum()
    return last.isalpha() and not _CURRENCY_CODE.search(before)


def _below(part: str, parts: str) -> bool:
    return len(part) <= LONGEST >= len(parts) and int(part) < int(parts)


def _value(
    literal: str,
    *,
    below: str | None = None,
    power: int = 0,
    scale: int = 0,
    negative: bool = False,
    part: tuple[str, str] | None = None,
) -> Fraction | None:
    if max(len(literal), len(below or ""), abs(power)) > LONGEST:
        return None
    # Fraction reads text with a pattern, which is slow
    digits = literal.replace(",", "")
    value = Fraction(int(digits) if digits.isdecimal() else digits)
    if below is not None:
        divisor = Fraction(below.replace(",", ""))
        if not divisor:
            return None
        value /= divisor
    if part is not None:
        value += Fraction(int(part[0]), int(part[1]))
    if power + scale:
        value *= Fraction(10) ** (power + scale)
    value = -value if negative else value
    longest = max(abs(value.numerator), value.denominator)
    return value if longest < 10**LONGEST else None


class _Scan(NamedTuple):
    """Places in a text, each list ascending, so that looking one up is cheap.

    stops: ends of lines and sentences; closings: "}"; equals: "=".
    """

    numbers: list[Number]
    ends: list[int]
    stops: list[int]
    closings: list[int]
    equals: list[int]


def _scan(plain: str, numbers: list[Number]) -> _Scan:
    return _Scan(
        numbers,
        [number.end for number in numbers],
        [match.start() for match in _END.finditer(plain)] + [len(plain)],
        [i for i, sign in enumerate(plain) if sign == "}"] + [len(plain)],
        [i for i, sign in enumerate(plain) if sign == "="],
    )


def _places(plain: str) -> Iterator[tuple[str, list[int]]]:
    """The rules in their order, each with the places behind its marks in its order."""
    marks = [match.end() for match in _MARK.finditer(plain)]
    yield "mark", [place for place in marks if not _HEADING.match(plain, place)]
    yield "inner mark", [m.end() for m in _INNER_MARK.finditer(plain)][::-1]
    yield "boxed", [m.end() for m in _BOXED.finditer(plain)][::-1]
    for match in [*_PHRASE.finditer(plain)][::-1]:
        colon = match["verb"][-1] in ":="
        yield "colon" if colon else "phrase", [match.end()]


def _after(scan: _Scan, place: int, rule: str) -> Number | None:
    """The number that the mark before this place names, if any."""
    stop = scan.stops[bisect_left(scan.stops, place)]
    if rule == "boxed":
        stop = min(stop, scan.closings[bisect_left(scan.closings, place)])
    first = bisect_right(scan.ends, place)
    last = bisect_right(scan.ends, stop)
    if first == last:
        return None
    equal = bisect_left(scan.equals, stop) - 1
    if equal >= 0 and scan.equals[equal] >= scan.numbers[first].end:
        later = bisect_right(scan.ends, scan.equals[equal])
        return scan.numbers[min(later, last - 1)]
    return None if rule == "colon" and last - first > 1 else scan.numbers[first]
