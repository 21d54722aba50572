"""Every parser is total, pure and reads the answers that models write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.parsers import canonical_number, final_number, normal_answer

PARSERS = [canonical_number, final_number, normal_answer]


@pytest.mark.parametrize("parser", PARSERS)
@given(text=st.text())
def test_a_parser_is_total_and_repeatable(parser, text):
    result = parser(text)
    assert result is None or isinstance(result, str)
    assert parser(text) == result


@pytest.mark.parametrize("parser", PARSERS)
@given(text=st.text(alphabet="0123456789.,-−$# \n\"'ab"))
def test_parsing_a_result_again_changes_nothing(parser, text):
    result = parser(text)
    assert result is None or parser(result) == result


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "{}.00"]))
def test_a_number_is_read_however_it_is_written(number, style):
    text = f"So they pay ${style.format(number)} in all."
    assert canonical_number(style.format(number)) == str(number)
    assert final_number(f"7 and 8.\n#### {style.format(number)}") == str(number)
    if number >= 0:
        assert final_number(text) == str(number)


@pytest.mark.parametrize(
    "text,number",
    [
        ("#### 18", "18"),
        ("48/2 = 24\n#### 1,250\nThanks 5", "1250"),
        ("#### \nThe answer is 7.", "7"),
        ("first #### 3 then\n#### 4", "4"),
        ("She sold 24 in May, 72 in all.", "72"),
        ("It costs -$5.50", "-5.5"),
        ("between 3-5", "5"),
        ("x = −4", "-4"),
        ("1,2,3", "3"),
        ("-0.0", "0"),
        ("1.2.3", None),
        ("no number", None),
        ("", None),
    ],
)
def test_final_number(text, number):
    assert final_number(text) == number


@pytest.mark.parametrize(
    "a,b,same",
    [
        ("True", " true.\n", True),
        ('"Paris"', "paris", True),
        ("2 × 3", "2  ×\t3", True),
        ("-2", "2", False),
        ("1.5", "15", False),
        ("mother-in-law", "mother in law", False),
    ],
)
def test_normal_answer(a, b, same):
    assert (normal_answer(a) == normal_answer(b)) is same
