"""The calculator: right, exact, written as people write, and never at a loss."""

import random
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.arithmetic import (
    MAX_CHARS,
    MAX_DEPTH,
    MAX_DIGITS,
    ExpressionError,
    evaluate_expression,
    expression_value,
    write_decimal,
)

VALUES = {
    "1 + 2 * 3": "7",
    "(1 + 2) * 3": "9",
    "-2 ** 2": "-4",
    "(-2) ** 2": "4",
    "2 ** 3 ** 2": "512",
    "2 ** -1": "0.5",
    "--3": "3",
    "2 - -3": "5",
    "7 // 2": "3",
    "-7 // 2": "-4",
    "-7 % 3": "2",
    "7.5 % 2": "1.5",
    "10 / 4": "2.5",
    "1 / 3": "0.3333333333",
    "2 / 3": "0.6666666667",
    "0.1 + 0.2": "0.3",
    "1 / 30000": "0.00003333333333",
    "3 - 3.0": "0",
    "1,250.50 * 2": "2501",
    "1,00,000 + 1": "100001",
    "$5 + $ 2.50": "7.5",
    "20% * 50": "10",
    "20% of 50": "10",
    "50%": "0.5",
    "(100 + 20)%": "1.2",
    "100 * (1 - 15%)": "85",
    "10% + 1": "1.1",
    "10% - 1": "-0.9",
    "17 % 5": "2",
    "17 % (2 + 3)": "2",
    "3 x 4": "12",
    "3×4 ÷ 2 · 5": "30",
    "2^10": "1024",
    "48/2=": "24",
    "1e3": "1000",
    ".5 + 5.": "5.5",
    "9 ** 0.5": "3",
    "2 ** 0.5": "1.4142135624",
    "1.05 ** 30": "4.3219423752",
    "(1 + 0.05 / 365) ** 365": "1.0512674965",
    "1 ** 99999999999999999999": "1",
    "(-1) ** 99999999999999999999": "-1",
    "3 − 5": "-2",
    "½ + 1": "1.5",
    "10 ** 99": "1" + "0" * 99,
}
REFUSED = {
    "": "got the end",
    "1 +": "got the end",
    "1 2": "expected an operator or the end, got '2'",
    "(1": "expected a closing parenthesis, got the end",
    "1)": "got '\\)'",
    "* 3": "got '\\*'",
    "2(3)": "got '\\('",
    "1 / 0": "a divisor other than 0",
    "1 // 0": "a divisor other than 0",
    "1 % 0": "a divisor other than 0",
    "0 ** -1": "a divisor other than 0",
    "(-8) ** (1/3)": "no real number",
    "1,25": "got ','",
    "1,2345": "got ','",
    "x = 3": "got '='",
    "len('a')": "got 'len'",
    "__import__('os')": "got '__import__'",
    "a.b": "got 'a'",
    "1 if 2 else 3": "got 'if'",
    "3 = 3": "got '='",
    "[1]": "got '\\['",
    "1_000": "got '_000'",
    "10 ** 100000": "larger",
    "9 ** 9 ** 9 ** 9": "larger",
    "2 ** (10 ** 50)": "larger",
    "0.5 ** (10 ** 50)": "nearer to 0",
    "10 ** 101": "larger",
    "10 ** -101": "nearer to 0",
    "1e999": "larger",
    "9" * 101: "larger",
    "1+" * 300 + "1": f"at most {MAX_CHARS} characters",
    "(" * 60 + "1" + ")" * 60: f"at most {MAX_DEPTH} levels",
    "2**" * 60 + "1": f"at most {MAX_DEPTH} levels",
    "1\x00": "got",
    "🙂": "got '🙂'",
}


@pytest.mark.parametrize("text", VALUES)
def test_values(text):
    assert evaluate_expression(text) == VALUES[text]


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: repr(text[:20]))
def test_what_has_no_value_is_refused_with_what_was_expected(text):
    with pytest.raises(ExpressionError, match=REFUSED[text]) as caught:
        evaluate_expression(text)
    said = str(caught.value)
    assert said.startswith("expected ") and "got" in said and "\n" not in said


PIECES = [
    "1", "2.5", "1,000", "0", "9" * 30, "1e300", "+", "-", "*", "/", "//", "%", "**",
    "^", "(", ")", " ", "$", ",", ".", "=", "x", "of", "e", "÷", "½", "²", "\n", "_",
]  # fmt: skip


@settings(max_examples=600)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_has_a_value_or_is_refused(text):
    try:
        written = evaluate_expression(text)
    except ExpressionError:
        return
    value, again = Fraction(written), Fraction(evaluate_expression(written))
    assert abs(value - again) <= abs(value) / 10**9
    assert len(written) <= 2 * MAX_DIGITS + 20


def expression(rng, depth):
    """A random expression of whole numbers that Python reads in the same way."""
    if depth == 0 or rng.random() < 0.2:
        return str(rng.randint(0, 30))
    left, right = expression(rng, depth - 1), expression(rng, depth - 1)
    kind = rng.choice(["+", "-", "*", "/", "//", "%", "**", "()", "neg"])
    if kind == "()":
        return f"({left})"
    if kind == "neg":
        return f"-{left}"
    if kind == "**":
        return f"({left}) ** {rng.randint(0, 3)}"
    # "5 % -3" is a percentage here
    right = f"({right})" if kind == "%" or right[0] == "-" else right
    return f"{left} {kind} {right}"


def test_values_are_those_of_python_on_exact_numbers():
    rng, num_equal = random.Random(0), 0
    for _ in range(1500):
        text = expression(rng, 4)
        exact = re.sub(r"([0-9]+)", r"Fraction(\1)", text)
        try:
            wanted = Fraction(eval(exact, {"Fraction": Fraction}))
        except ZeroDivisionError:
            with pytest.raises(ExpressionError, match="a divisor other than 0"):
                expression_value(text)
            continue
        if max(abs(wanted.numerator), wanted.denominator) < 10**20:
            assert expression_value(text) == wanted, text
            num_equal += 1
    assert num_equal > 1000


@given(st.fractions())
def test_written_numbers_are_near_and_plain(value):
    written = write_decimal(value)
    assert set(written) <= set("-.0123456789")
    assert abs(Fraction(written) - value) <= Fraction(1, 2 * 10**10)
    assert abs(Fraction(written) - value) <= max(abs(value), Fraction(1, 10)) / 10**9


def test_the_longest_hostile_texts_take_no_time():
    hostile = [
        "9" * MAX_CHARS,
        "9**" * 39 + "9",
        "1.0000001**" * 30 + "9999999",
        "1/3+" * 124 + "1",
        "0." + "3" * 400 + "**99",
        "(" * MAX_CHARS,
        "-" * MAX_CHARS,
        "," * MAX_CHARS,
        "1," * 250,
        "9e99*" * 99,
    ]
    start = time.perf_counter()
    for text in hostile:
        try:
            evaluate_expression(text)
        except ExpressionError:
            pass
    assert time.perf_counter() - start < 1.0
