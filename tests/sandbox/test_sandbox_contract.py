"""What every sandbox does, whichever it is."""

import asyncio
import threading
import time

import pytest

from metaharness.errors import SandboxError
from metaharness.sandbox import Limits, Outcome, open_sandbox

ROOMY = Limits(cpu_s=1.0, wall_s=10.0)


def outcome(sandbox, source, limits=ROOMY, **tools):
    return sandbox.load(source, limits=limits).call("f", tools=tools)


def test_a_value_comes_back_with_its_types(sandbox):
    program = sandbox.load("def f(x, y):\n    return [x, (y, None), {1: {2.5}}, b'z']")
    result = program.call("f", True, "é")
    assert result.outcome is Outcome.OK
    assert repr(result.value) == repr([True, ("é", None), {1: {2.5}}, b"z"])
    assert 0 < result.cpu_s < 1 and 0 < result.wall_s < 1


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("def f():\n    1 / 0", Outcome.ERROR),
        ("def g(): pass", Outcome.ERROR),
        ("raise SystemExit(0)", Outcome.ERROR),
        ("def f(", Outcome.REFUSED),
        ("x = '\0'", Outcome.REFUSED),
        ("def f():\n    while True: pass", Outcome.CPU),
        ("while True: pass", Outcome.CPU),
        ("import time\ndef f():\n    time.sleep(99)", Outcome.WALL),
        ("def f():\n    return len('x' * 10**9)", Outcome.MEMORY),
        ("def f():\n    while True: print('x' * 99)", Outcome.OUTPUT),
        ("def f():\n    return 'x' * 2_000_000", Outcome.RESULT),
        ("def f():\n    return object()", Outcome.RESULT),
        ("import os\ndef f():\n    os._exit(0)", Outcome.CRASHED),
        ("import ctypes\ndef f():\n    ctypes.string_at(0)", Outcome.CRASHED),
    ],
)
def test_each_end_has_its_outcome(sandbox, source, wanted):
    limits = Limits(cpu_s=0.2, wall_s=1.0)
    result = outcome(sandbox, source, limits)
    assert result.outcome is wanted, result
    assert result.value is None and result.error and len(result.error) <= 500


def test_a_cpu_limit_is_kept_to_a_tenth_of_a_second(sandbox):
    # the kernel counts in ticks of up to 10 ms
    result = outcome(sandbox, "def f():\n    return 7 ** (7 ** 9)", Limits(wall_s=20.0))
    assert result.outcome is Outcome.CPU and 0.03 <= result.cpu_s < 0.15


def test_what_is_printed_is_kept_apart_from_the_value(sandbox):
    result = outcome(sandbox, "def f():\n    print('passed')\n    return 1")
    assert (result.value, result.stdout) == (1, "passed\n")


def test_tools_come_first_and_run_on_the_host(sandbox):
    here = threading.get_ident()
    program = sandbox.load("def f(ask, tell, x):\n    tell((x,))\n    return ask(x, 2)")
    heard = []
    tools = {
        "ask": lambda x, y: (x, y, threading.get_ident() == here),
        "tell": heard.append,
    }
    result = program.call("f", {1}, tools=tools)
    assert result.value == ({1}, 2, True) and heard == [({1},)]
    assert result.calls == 2


def test_a_failing_tool_tells_the_program_nothing(sandbox):
    def fail():
        raise RuntimeError("host secret")

    source = "def f(t):\n    try:\n        t()\n    except Exception as e:\n"
    source += "        return repr(e), repr(e.__dict__)"
    result = outcome(sandbox, source, t=fail)
    assert result.outcome is Outcome.OK and "secret" not in str(result.value)


def test_tool_calls_are_counted_on_the_host(sandbox):
    source = "def f(t):\n    while True:\n        try:\n            t()\n"
    source += "        except BaseException:\n            pass"
    served = []
    result = outcome(sandbox, source, t=lambda: served.append(1))
    assert result.outcome is Outcome.CALLS and len(served) == result.calls == 100


def test_a_tool_call_has_a_largest_size(sandbox):
    result = outcome(sandbox, "def f(t):\n    t('x' * 200_000)", t=lambda x: x)
    assert result.outcome is Outcome.CALLS and result.calls == 0


def test_the_time_of_tools_does_not_count(sandbox):
    source = "def f(t):\n    t()\n    return 1"
    result = outcome(
        sandbox, source, Limits(wall_s=0.6), t=lambda: time.sleep(1.0) or None
    )
    assert result.outcome is Outcome.OK and result.wall_s < 0.6


def test_calls_share_nothing_unless_kept(sandbox):
    source = "n = 0\ndef f():\n    global n\n    n += 1\n    return n"
    program = sandbox.load(source, limits=ROOMY)
    assert [program.call("f").value for _ in range(2)] == [1, 1]
    with sandbox.load(source, keep=True, limits=ROOMY) as kept:
        assert kept.start().outcome is Outcome.OK
        assert [kept.call("f").value for _ in range(3)] == [1, 2, 3]


def test_a_kept_program_shares_its_limits_and_ends_once(sandbox):
    source = "def f(n):\n    while n: n -= 1\n    return 0\ndef g():\n    1 / 0"
    with sandbox.load(source, keep=True, limits=Limits(cpu_s=0.3)) as kept:
        assert kept.call("g").outcome is Outcome.ERROR
        outcomes = [kept.call("f", 1_000_000).outcome for _ in range(60)]
    first_end = outcomes.index(Outcome.CPU)
    assert first_end > 0 and set(outcomes[:first_end]) == {Outcome.OK}
    assert set(outcomes[first_end + 1 :]) == {Outcome.CRASHED}
    with pytest.raises(SandboxError, match="kept program"):
        kept.call("f", 1, limits=Limits())


def test_the_same_call_gives_the_same_answer(sandbox):
    source = (
        "import random\ndef f():\n    return random.random(), list({'a', 'b', 'c'})"
    )
    results = [outcome(sandbox, source).value for _ in range(2)]
    with open_sandbox(sandbox.name) as other:
        results.append(outcome(other, source).value)
    assert results[0] == results[1] == results[2] is not None


def test_calls_from_threads_do_not_mix(sandbox):
    program = sandbox.load("def f(x):\n    return x * 2", limits=ROOMY)

    async def many():
        return await asyncio.gather(*(program.acall("f", n) for n in range(40)))

    assert [r.value for r in asyncio.run(many())] == [2 * n for n in range(40)]


def test_common_modules_can_be_imported(sandbox):
    names = "math re collections heapq hashlib itertools functools typing decimal "
    names += "fractions datetime string copy random statistics json bisect dataclasses"
    source = f"import {', '.join(names.split())}\ndef f():\n"
    source += "    return datetime.datetime.strptime('2024', '%Y').year"
    assert outcome(sandbox, source).value == 2024
    digits = "import sys\ndef f():\n    sys.set_int_max_str_digits(0)\n"
    digits += "    return len(str(1 << 50_000))"
    assert outcome(sandbox, digits).value == 15_052
    assert "ModuleNotFoundError" in outcome(sandbox, "import numpy").error
