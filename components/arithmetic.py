"""A calculator for text: exact where numbers stay short, total in time and memory.

The grammar below is all there is: no name, call or attribute can be written, and the
text never reaches Python's own parser, which a hostile one can crash.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from components.numbers import plain_text

MAX_CHARS = 500
MAX_DEPTH = 40
# Numbers have at most this many digits before their point, and are no nearer to zero.
MAX_DIGITS = 100
# Decimals that are written, and significant digits of what is near zero.
PLACES = 10

_LARGEST = 10**MAX_DIGITS
_MAX_BITS = _LARGEST.bit_length()
_TOKEN = re.compile(
    r"[$€£¥₹]? ?(?P<number>(?:[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}(?![0-9])|[0-9]+)"
    r"(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?|\.[0-9]+)"
    r"|(?P<sign>\*\*|//|[-+*/%^()×÷·x]|of\b)"
)
_ALIASES = {"^": "**", "×": "*", "·": "*", "x": "*", "of": "*", "÷": "/"}
_OPERANDS = ("number", "(")
_REMEDY = "use numbers, + - * / // % ** and parentheses"


class ExpressionError(ValueError):
    """A text that is no expression, or one without a value that can be written."""


def evaluate_expression(text: str) -> str:
    """The value of an arithmetic expression, as `write_decimal` writes it.

    Raises ExpressionError, and nothing else; see `expression_value`.
    """
    return write_decimal(expression_value(text))


def expression_value(text: str) -> Fraction:
    """The value of an arithmetic expression, with Python's precedence.

    + - * / // % ** and parentheses; also × · x "of" ÷ ^ (power), $ and the like before
    a number, commas between its groups of digits ("1,250"), and one "=" at the end. "%"
    before a number or a parenthesis is the remainder ("17 % 5"), anywhere else percent
    ("20% * 50", "10% + 1"). Values are exact while their numerators and denominators
    have at most `MAX_DIGITS` digits, and rounded to double precision beyond; so are
    powers that are no rational number.

    Raises ExpressionError on anything else, a division by zero, a value that is no real
    number, one outside of the range of `MAX_DIGITS`, and a text over `MAX_CHARS`.
    """
    if len(text) > MAX_CHARS:
        raise ExpressionError(
            f"expected at most {MAX_CHARS} characters, got {len(text)}; calculate in "
            "several steps."
        )
    reader = _Reader(_tokens(plain_text(text).strip().removesuffix("=")))
    value = reader.sum()
    if reader.kind:
        raise reader.unexpected("an operator or the end")
    return value


def write_decimal(value: Fraction) -> str:
    """The value as people write it: "1250", "0.3", "-0.3333333333".

    Rounded to `PLACES` decimals, below 1/10 to as many significant digits.
    """
    if value.denominator == 1:
        return str(value.numerator)
    places, edge = PLACES, abs(value) * 10
    while edge < 1:
        places, edge = places + 1, edge * 10
    digits = str(abs(round(value * 10**places))).zfill(places + 1)
    decimals = digits[-places:].rstrip("0")
    return "-" * (value < 0) + digits[:-places] + "." * bool(decimals) + decimals


class _Token(NamedTuple):
    """kind: "number" or the operator itself."""

    kind: str
    text: str


def _tokens(text: str) -> list[_Token]:
    tokens, place = [], 0
    while rest := text[place:].lstrip():
        place = len(text) - len(rest)
        match = _TOKEN.match(text, place)
        if not match:
            word = re.findall(r"\w+|.", rest, re.DOTALL)[0]
            raise ExpressionError(
                f"expected an arithmetic expression, got {word[:40]!r}; {_REMEDY}."
            )
        sign = match["sign"]
        kind = _ALIASES.get(sign, sign) if sign else "number"
        tokens.append(_Token(kind, match["number"] or sign))
        place = match.end()
    return tokens


class _Reader:
    """Recursive descent; each method reads one level of precedence."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._place, self._depth = tokens, 0, 0

    @property
    def kind(self) -> str:
        """Kind of the next token, "" at the end."""
        return self._kind_at(self._place)

    def unexpected(self, wanted: str) -> ExpressionError:
        got = repr(self._tokens[self._place].text) if self.kind else "the end"
        return ExpressionError(f"expected {wanted}, got {got[:60]}; {_REMEDY}.")

    def sum(self) -> Fraction:
        value = self._product()
        while (kind := self.kind) in ("+", "-"):
            self._place += 1
            other = self._product()
            value = _kept(value + other if kind == "+" else value - other)
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while (kind := self.kind) in ("*", "/", "//", "%"):
            self._place += 1
            other = self._signed()
            if kind != "*" and not other:
                raise ExpressionError(
                    f"expected a divisor other than 0, got {kind} 0; divide by "
                    "something else."
                )
            if kind == "*":
                value *= other
            elif kind == "/":
                value /= other
            else:
                value = Fraction(value // other) if kind == "//" else value % other
            value = _kept(value)
        return value

    def _signed(self) -> Fraction:
        negative = False
        while self.kind in ("+", "-"):
            negative ^= self.kind == "-"
            self._place += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(
                f"expected at most {MAX_DEPTH} levels of nesting, got more; calculate "
                "in several steps."
            )
        value = self._operand()
        if self.kind == "**":
            self._place += 1
            value = _power(value, self._signed())
        self._depth -= 1
        return -value if negative else value

    def _operand(self) -> Fraction:
        kind = self.kind
        if kind == "number":
            text = self._tokens[self._place].text.replace(",", "")
            value = _kept(Fraction(text))
        elif kind == "(":
            self._place += 1
            value = self.sum()
            if self.kind != ")":
                raise self.unexpected("a closing parenthesis")
        else:
            raise self.unexpected("a number or an opening parenthesis")
        self._place += 1
        while self.kind == "%" and self._kind_at(self._place + 1) not in _OPERANDS:
            self._place += 1
            value = _kept(value / 100)
        return value

    def _kind_at(self, place: int) -> str:
        return self._tokens[place].kind if place < len(self._tokens) else ""


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if not base and exponent < 0:
        raise ExpressionError(
            "expected a divisor other than 0, got a negative power of 0; use another "
            "base."
        )
    if exponent.denominator == 1:
        longest = max(abs(base.numerator), base.denominator)
        # a lower bound of the result's length: 0 for 1, whatever the exponent
        if (longest.bit_length() - 1) * abs(exponent) <= 2 * _MAX_BITS:
            return _kept(base**exponent.numerator)
    elif base < 0:
        raise ExpressionError(
            f"expected a whole exponent of a negative base, got "
            f"{write_decimal(exponent)}; its value is no real number."
        )
    try:
        value = Fraction(float(base) ** float(exponent))
    except OverflowError as error:
        raise _too_long("larger") from error
    if base and not value:
        raise _too_long("nearer to 0")
    return _kept(value)


def _kept(value: Fraction) -> Fraction:
    """The value, rounded where it is long; refused where it is out of range."""
    if max(abs(value.numerator), value.denominator) <= _LARGEST:
        return value
    if abs(value) >= _LARGEST:
        raise _too_long("larger")
    if abs(value) * _LARGEST <= 1:
        raise _too_long("nearer to 0")
    return Fraction(float(value))


def _too_long(what: str) -> ExpressionError:
    return ExpressionError(
        f"expected numbers of at most {MAX_DIGITS} digits, got one that is {what}; "
        "calculate with smaller numbers."
    )
