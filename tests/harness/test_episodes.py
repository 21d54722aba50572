"""Episodes: each boundary, retries, tools, confidence, budget, cache, order."""

import dataclasses
import json
import time

import pytest
from simulated import Simulated, last_turn
from tiny_space import exact, make_model

from components.context_policy import ContextPolicy
from components.output_policy import OutputPolicy
from components.retry_policy import RetryPolicy
from components.templates import Template
from components.tool_policy import ToolPolicy
from components.tools import ToolReply, ToolSpec
from metaharness.errors import TaskError
from metaharness.harness.call_cache import CallCache
from metaharness.harness.episode import Job
from metaharness.harness.episodes import run_episodes
from metaharness.harness.slots import Choice, Harness, Templates
from metaharness.harness.space import build_space
from metaharness.harness.trace import Reached, Trace
from metaharness.model.request import Batch, Completion
from metaharness.runlog.budget import Budget, BudgetCounter
from metaharness.tasks.task import Item, Task, fingerprint

# nothing is run: the simulated writer stands in; tool descriptions take many bytes
MODEL = dataclasses.replace(
    make_model(), config=dataclasses.replace(make_model().config, max_positions=4096)
)
ITEMS = tuple(Item(f"q{i}", f"{i}+1", str(i + 1)) for i in range(6))
TEMPLATES = (Template("bare"), Template("asked", question="Q: {question}"))


class Adder:
    """Adds; its state is what was asked of it."""

    tools = (
        ToolSpec(
            "add",
            "Adds two numbers.",
            {"type": "object", "properties": {"a": {}, "b": {}}},
        ),
        ToolSpec("sleep", "Sleeps."),
        ToolSpec("fail", "Fails."),
        ToolSpec("finish", "Ends the work."),
    )

    def __init__(self, item):
        self.item, self.calls, self.done = item, [], False

    def call(self, name, arguments):
        self.calls.append(name)
        if name == "sleep":
            time.sleep(2.0)
        if name == "fail":
            raise OSError("a secret path")
        if name == "finish":
            self.done = True
        if name == "add":
            return ToolReply(str(arguments["a"] + arguments["b"]))
        return ToolReply("ok")

    def reward(self, answer):
        return float(answer == self.item.answer or "finish" in self.calls)


def make_task(**changes):
    splits = {
        "pool": ITEMS[:1],
        "train": ITEMS[1:2],
        "validation": ITEMS[2:3],
        "test": ITEMS,
    }
    task = Task(
        "sums",
        **splits,
        scorer=exact,
        max_new_tokens=32,
        stop=(),
        fingerprint=fingerprint(splits),
        source="",
    )
    return dataclasses.replace(task, **changes)


def run(text_of, jobs=None, *, task=None, counter=None, writer=None, **slots):
    """Traces of episodes of a harness of these policies."""
    task = task or make_task()
    pools = {
        name: (policy,)
        for name, policy in slots.items()
        if name in ("output", "retry", "tools", "context")
    }
    harness = Harness(None, Templates(TEMPLATES), **pools)
    space = build_space(MODEL, harness, [task], guard_leaks=False)
    writer = writer or Simulated(text_of)
    jobs = jobs or [Job(Choice((), 0), item) for item in ITEMS[:1]]
    done = run_episodes(
        space,
        task,
        jobs,
        writer,
        counter=counter or BudgetCounter(),
        cache=slots.get("cache"),
        at_once=slots.get("at_once", 512),
        on_finish=slots.get("on_finish"),
    )
    return done, writer


def one(text_of, **slots):
    done, _ = run(text_of, **slots)
    return done.traces[0]


@pytest.mark.parametrize(
    ("text", "output", "reached", "reward"),
    [
        ("1", OutputPolicy("o"), Reached.RIGHT, 1.0),
        ("2", OutputPolicy("o"), Reached.WRONG, 0.0),
        ("", OutputPolicy("o"), Reached.NO_ANSWER, 0.0),
        ("1", OutputPolicy("o", extract="hashes"), Reached.NOT_EXTRACTED, 0.0),
        ("so\n#### 1", OutputPolicy("o", extract="hashes"), Reached.RIGHT, 1.0),
        ("1", OutputPolicy("o", pattern="[a-z]+"), Reached.NOT_EXTRACTED, 0.0),
        ("7", OutputPolicy("o", pattern="[a-z]+"), Reached.REFUSED, 0.0),
        ("7", OutputPolicy("o", pattern="[a-z]+", strict=False), Reached.WRONG, 0.0),
    ],
)
def test_each_boundary_is_named(text, output, reached, reward):
    trace = one(lambda *_: (text, 0.9), output=output)
    assert (trace.reached, trace.reward) == (reached, reward)
    assert Trace.from_json(json.loads(json.dumps(trace.as_json()))) == trace


def test_a_cut_text_is_told_from_one_without_an_answer():
    class Cut(Simulated):
        def batches(self, requests):
            for batch in super().batches(requests):
                place, written = batch.completions[0]
                yield batch._replace(
                    completions=[(place, written._replace(ended=False))]
                )

    done, _ = run(
        None,
        writer=Cut(lambda *_: ("so far", 0.5)),
        output=OutputPolicy("o", extract="hashes"),
    )
    assert done.traces[0].reached == Reached.CUT


def test_a_prompt_without_room_is_data_not_an_error():
    long = Item("long", "x" * 6000, "1")
    done, writer = run(lambda *_: ("1", 0.9), [Job(Choice((), 0), long)])
    assert done.traces[0].reached == Reached.TOO_LONG
    assert not writer.requests


@pytest.mark.parametrize("how", ["same", "feedback", "template"])
def test_a_retry_asks_as_its_policy_says(how):
    turns = []

    def text_of(text, rng):
        turns.append(text)
        return ("??", 0.9) if len(turns) < 3 else ("1", 0.9)

    trace = one(
        text_of,
        output=OutputPolicy("o", pattern=r"\d+"),
        retry=RetryPolicy("r", attempts=4, how=how),
    )
    assert trace.reached == Reached.RIGHT and trace.attempts == 3
    assert trace.first_reward == 0.0
    assert [step.attempt for step in trace.steps] == [0, 1, 2]
    if how == "feedback":
        assert "cannot be used" in last_turn(turns[1])
        assert turns[2].count("cannot be used") == 2
    else:
        assert "cannot be used" not in turns[1]
    asked = ["Q: " in turn for turn in turns]
    assert asked == ([False, True, False] if how == "template" else [False] * 3)
    later = trace.tokens - trace.first_tokens
    assert trace.loss_after_first(2.0) == pytest.approx(-1 + 2.0 * later / 1000)


def test_attempts_end():
    trace = one(
        lambda *_: ("??", 0.9),
        output=OutputPolicy("o", pattern=r"\d+"),
        retry=RetryPolicy("r", attempts=3),
    )
    assert (trace.attempts, trace.reached) == (3, Reached.REFUSED)


def test_an_unsure_answer_is_repeated_and_the_surest_is_taken():
    answers = iter([("2", 0.3), ("1", 0.6), ("3", 0.5)])
    trace = one(
        lambda *_: next(answers), retry=RetryPolicy("r", attempts=3, min_confidence=0.7)
    )
    assert (trace.answer, trace.reached, trace.attempts) == ("1", Reached.RIGHT, 3)
    assert trace.first_reward == 0.0


CALL = '<tool_call>{"name": "add", "arguments": {"a": 0, "b": 1}}'
TOOLED = make_task(environment=Adder)


def after_call(call, answer="1"):
    return lambda text, _: (answer, 0.9) if "Result: " in text else (call, 0.9)


def test_a_tool_is_called_and_its_result_is_read():
    seen = []

    def text_of(text, rng):
        seen.append(text)
        return after_call(CALL)(text, rng)

    trace = one(text_of, task=TOOLED, tools=ToolPolicy("t"))
    assert trace.reached == Reached.RIGHT and trace.tool_calls == 1
    assert trace.steps[0].uses[0].reply == "1" and trace.attempts == 1
    assert '"name": "add"' in seen[0] and "Result: 1" in last_turn(seen[1])
    assert CALL + "</tool_call>" in seen[1]


def test_a_call_without_tags_is_kept_as_it_was_written():
    seen, bare = [], CALL.removeprefix("<tool_call>")

    def text_of(text, rng):
        seen.append(text)
        return after_call(bare)(text, rng)

    trace = one(text_of, task=TOOLED, tools=ToolPolicy("t"))
    assert trace.reached == Reached.RIGHT and trace.tool_calls == 1
    assert bare in seen[1] and bare + "</tool_call>" not in seen[1]


@pytest.mark.parametrize(
    ("call", "policy", "reached", "shown"),
    [
        (CALL.replace("add", "sub"), ToolPolicy("t"), Reached.RIGHT, "'sub'"),
        (CALL.replace("add", "fail"), ToolPolicy("t"), Reached.RIGHT, "OSError"),
        (
            CALL.replace("add", "fail"),
            ToolPolicy("t", on_error="hide"),
            Reached.RIGHT,
            "the call failed",
        ),
        (
            CALL.replace("add", "fail"),
            ToolPolicy("t", on_error="stop"),
            Reached.TOOL_ERROR,
            None,
        ),
        ("<tool_call>{", ToolPolicy("t"), Reached.RIGHT, "must be JSON"),
        (CALL, ToolPolicy("t", tools=("sleep",)), Reached.RIGHT, "among sleep"),
        (
            CALL.replace("add", "sleep"),
            ToolPolicy("t", timeout_s=0.05),
            Reached.TOOL_ERROR,
            None,
        ),
        (CALL.replace("add", "finish"), ToolPolicy("t"), Reached.RIGHT, None),
    ],
)
def test_calls_that_go_wrong_are_shown_as_the_policy_says(call, policy, reached, shown):
    seen = []

    def text_of(text, rng):
        seen.append(last_turn(text))
        return after_call(call)(text, rng)

    trace = one(text_of, task=TOOLED, tools=policy)
    assert trace.reached == reached
    assert len(seen) == (1 if shown is None else 2)
    if shown:
        assert shown in seen[1] and "secret" not in seen[1]


def test_calls_are_bounded():
    trace = one(lambda *_: (CALL, 0.9), task=TOOLED, tools=ToolPolicy("t", calls=2))
    assert (trace.reached, trace.tool_calls, len(trace.steps)) == (Reached.CALLS, 2, 3)


def test_context_is_cut_as_the_policy_says():
    seen = []

    def text_of(text, rng):
        seen.append(text)
        return CALL, 0.9

    policy = ContextPolicy("c", turns=1, quote=True, attempt_tokens=9)
    done, writer = run(
        text_of, task=TOOLED, tools=ToolPolicy("t", calls=2), context=policy
    )
    assert seen[2].count("Result: ") == 1 and "Result: > 1" in seen[2]
    assert {request.max_new_tokens for request in writer.requests} == {9}


def test_a_retry_starts_in_a_world_of_its_own():
    worlds = []

    def environment(item):
        worlds.append(Adder(item))
        return worlds[-1]

    one(
        after_call(CALL, answer="??"),
        task=make_task(environment=environment),
        tools=ToolPolicy("t"),
        output=OutputPolicy("o", pattern=r"\d+"),
        retry=RetryPolicy("r", attempts=2),
    )
    assert [world.calls for world in worlds] == [["add"], ["add"]]


def test_a_budget_of_calls_is_never_passed_and_leaves_whole_episodes():
    for limit in range(1, 14):
        counter = BudgetCounter({"": Budget(max_calls=limit)})
        finished = []
        done, writer = run(
            lambda *_: ("??", 0.9),
            [Job(Choice((), 0), item) for item in ITEMS],
            counter=counter,
            output=OutputPolicy("o", pattern=r"\d+"),
            retry=RetryPolicy("r", attempts=2),
            at_once=2,
            on_finish=lambda place, trace, finished=finished: finished.append(place),
        )
        assert len(writer.requests) == counter.counts().lm_calls == min(limit, 12)
        kept = [place for place, trace in enumerate(done.traces) if trace is not None]
        spent = min(limit, 12)  # two are open at once, two calls each
        assert (
            sorted(finished) == kept == list(range(spent // 4 * 2 + (spent % 4) // 3))
        )
        assert bool(done.stopped) == (limit < 12)


def test_identical_requests_run_once_and_are_counted_apart(tmp_path):
    jobs = [Job(Choice((), 0), item, sample) for item in ITEMS for sample in range(2)]
    counter = BudgetCounter()
    with CallCache(tmp_path / "calls.sqlite") as cache:
        done, writer = run(lambda *_: ("1", 0.9), jobs, counter=counter, cache=cache)
        assert len(writer.requests) == counter.counts().lm_calls == 6
        assert counter.counts().cached_calls == 6
    with CallCache(tmp_path / "calls.sqlite") as cache:
        again, writer = run(lambda *_: ("1", 0.9), jobs, counter=counter, cache=cache)
    assert not writer.requests and counter.counts().cached_calls == 18
    same = [dataclasses.replace(t, seconds=0.0, steps=()) for t in done.traces]
    assert same == [dataclasses.replace(t, seconds=0.0, steps=()) for t in again.traces]


def test_samples_differ_and_do_not_depend_on_the_others():
    def text_of(text, rng):
        return str(rng.integers(10**9)), 0.5

    jobs = [
        Job(Choice((), 0), item, sample, temperature=1.0)
        for item in ITEMS[:3]
        for sample in range(3)
    ]
    whole, _ = run(text_of, jobs)
    answers = [trace.answer for trace in whole.traces]
    assert len(set(answers)) == 9
    alone, _ = run(text_of, jobs[4:5])
    assert alone.traces[0].answer == answers[4]


def test_a_task_that_nothing_grades_is_refused():
    with pytest.raises(TaskError, match="a scorer or an environment"):
        run(lambda *_: ("1", 0.9), task=make_task(scorer=None))


def test_labels_are_chosen_by_likelihood_and_bias():
    class Scored(Simulated):
        def batches(self, requests):
            for place, request in enumerate(requests):
                assert len(request.options) == 2
                done = Completion("", 0, 1.0, True, (1.0, 1.5))
                yield Batch([(place, done)], 1, 0)

    for bias, expected in (((), "1"), ((0.0, 1.0), "2")):
        policy = OutputPolicy("o", labels=("1", "2"), constrain=True, bias=bias)
        done, _ = run(None, writer=Scored(None), output=policy)
        assert done.traces[0].answer == expected
