"""One episode: ask, read the answer, call tools or ask again, and grade.

A state machine on the host: ``request`` is what the model shall write next, ``receive``
takes what it wrote, and ``trace`` is there when the episode is over. Whatever the model
writes, an episode ends: attempts, tool calls and tokens are bounded.
"""

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from typing import NamedTuple

from components.retry_policy import feedback
from components.templates import Template
from components.tool_protocol import PROTOCOLS, REPLY, Written
from components.tools import ToolCall, ToolSpec
from metaharness.harness.slots import Choice
from metaharness.harness.space import Space
from metaharness.harness.tool_calls import TimedOut, call_tool
from metaharness.harness.trace import Reached, Step, ToolUse, Trace
from metaharness.harness.turns import Exchange
from metaharness.model.request import Completion, Request
from metaharness.tasks.environment import Environment
from metaharness.tasks.task import Item, Task

_RIGHT = 0.999  # rewards above it are full ones, rounding aside


class Job(NamedTuple):
    """An episode to be run.

    sample: its number among those of one item and harness; temperature: of the first
    attempt; seed: of everything that is sampled, with the item's uid and ``sample``.
    """

    choice: Choice
    item: Item
    sample: int = 0
    temperature: float = 0.0
    seed: int = 0


class Episode:
    """See the module. request: None once the episode is over; trace: None before."""

    def __init__(self, space: Space, task: Task, job: Job) -> None:
        self.request: Request | None = None
        self.trace: Trace | None = None
        self._space, self._task, self._job = space, task, job
        self._policies = space.harness.policies(job.choice)
        self._protocol = PROTOCOLS[self._policies.tools.protocol]
        self._environment: Environment | None = None
        self._offered: tuple[ToolSpec, ...] = ()
        self._open_environment()
        self._template = job.choice.template
        self._attempt = self._calls = 0
        self._exchanges: list[Exchange] = []
        self._steps: list[Step] = []
        self._unsure: list[tuple[float, str]] = []  # refused for confidence alone
        self._first_reward: float | None = None
        self._seconds = 0.0
        self._ask()

    def receive(
        self, completion: Completion, *, cached: bool = False, seconds: float = 0.0
    ) -> None:
        """Go on with what the model wrote; seconds: what writing it took."""
        started = time.perf_counter()
        self._seconds += seconds
        request, self.request = self.request, None
        policy = self._policies.output
        text, confidence = completion.text, completion.confidence
        if policy.constrain:
            text, confidence = policy.choose(completion.option_nats)
        step = Step(
            attempt=self._attempt,
            template=self._template,
            prompt_tokens=request.num_prompt_tokens,
            new_tokens=completion.num_tokens,
            cached=cached,
            text=text,
            ended=completion.ended,
            confidence=confidence,
        )
        written = self._protocol.read(text) if self._offered else Written(())
        if written.calls or written.problem:
            self._use_tools(step, written)
        else:
            self._conclude(step)
        self._seconds += time.perf_counter() - started
        if self.trace is None and self.request is None:
            raise AssertionError("episode: neither over nor going on")

    def _ask(self) -> None:
        """The next request, or the end where it does not fit the model's context."""
        policies = self._policies
        template = self._asking()
        prefix = self._space.prefix_of(template, self._job.choice.exemplars)
        question = self._job.item.question
        exchanges = policies.context.kept(self._exchanges)
        if exchanges:
            asked = self._space.renderer.dialogue(template, question, exchanges)
        else:
            asked = self._space.question_of(template, question)
        options: tuple[tuple[int, ...], ...] = ()
        room = self._task.max_new_tokens
        if policies.context.attempt_tokens is not None:
            room = min(room, policies.context.attempt_tokens)
        if policies.output.constrain:
            encode = self._space.renderer.answer
            options = tuple(tuple(encode(label)) for label in policies.output.labels)
            room = max(map(len, options))
        limit = self._space.model.config.max_positions
        if len(prefix) + len(asked) + room > limit:
            self._finish(None, Reached.TOO_LONG)
            return
        stops = self._task.stop
        if not template.chat and not any("\n\n" in i.answer for i in self._task.pool):
            # plain text has no end of turn: an answer ends as the exemplars' do
            stops = (*stops, "\n\n")
        first = self._attempt == 0
        heat = self._job.temperature if first else policies.retry.temperature
        self.request = Request(
            prefix,
            tuple(asked),
            room,
            (*stops, *(self._protocol.stops if self._offered else ())),
            heat,
            self._seed() if heat > 0 else 0,
            options,
        )

    def _asking(self) -> Template:
        """The template, its system turn with what the task and the tools add to it:
        the same for all items whose tools are, so that one encoding serves them."""
        template = self._space.harness.template.pool[self._template]
        added = [self._task.instructions]
        if self._offered:
            added.append(self._protocol.describe(self._offered))
        if not any(added):
            return template
        system = "\n\n".join(filter(None, (template.system, *added)))
        return dataclasses.replace(template, system=system)

    def _seed(self) -> int:
        job = self._job
        words = f"{job.seed} {job.item.uid} {job.sample} {len(self._steps)}"
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:4], "big")

    def _use_tools(self, step: Step, written: Written) -> None:
        policy = self._policies.tools
        left = policy.calls - self._calls
        if left <= 0:
            self._steps.append(step)
            self._finish(None, Reached.CALLS)
            return
        uses, replies = [], []
        for call in written.calls[:left]:
            try:
                use = self._call(call)
            except TimedOut as error:
                # the environment may still be at work: nothing it holds can be graded
                uses.append(ToolUse(call.name, call.arguments, str(error), True, 0.0))
                self._steps.append(_with(step, tuple(uses)))
                self._finish(None, Reached.TOOL_ERROR, reward=0.0)
                return
            uses.append(use)
            replies.append(self._shown(use))
        self._calls += max(len(uses), 1)  # one that cannot be read counts, too
        if written.problem:
            replies.append(f"Error: {written.problem}")
        if len(written.calls) > left:
            replies.append("No more calls are left.")
        self._steps.append(_with(step, tuple(uses), written.problem))
        if self._environment is not None and self._environment.done:
            self._finish("", None)
            return
        failed = written.problem or any(use.error for use in uses)
        if failed and policy.on_error == "stop":
            self._finish(None, Reached.TOOL_ERROR)
            return
        said = self._policies.context.shorten(step.text)
        self._exchanges.append(
            Exchange(said + self._protocol.closing(step.text), _join(replies))
        )
        self._ask()

    def _call(self, call: ToolCall) -> ToolUse:
        started = time.perf_counter()
        names = [spec.name for spec in self._offered]
        if call.name not in names:
            reply = f"expected a tool among {', '.join(names)}, got {call.name!r}"
            return ToolUse(call.name, call.arguments, reply, True, 0.0)
        timeout_s = self._policies.tools.timeout_s
        reply = call_tool(self._environment, call, timeout_s)
        seconds = time.perf_counter() - started
        return ToolUse(call.name, call.arguments, reply.text, reply.error, seconds)

    def _shown(self, use: ToolUse) -> str:
        text = use.reply
        if use.error:
            hidden = self._policies.tools.on_error == "hide"
            text = "the call failed" if hidden else f"Error: {text}"
        return self._policies.context.show_result(text)

    def _conclude(self, step: Step) -> None:
        """The text is an answer, or should have been one."""
        retry = self._policies.retry
        parsed = self._policies.output.parse(step.text)
        problem = parsed.problem
        if parsed.answer is not None and step.confidence < retry.min_confidence:
            self._unsure.append((step.confidence, parsed.answer))
            problem = "it was not certain enough"
        step = _with(step, (), problem, None if problem else parsed.answer)
        self._steps.append(step)
        if not problem:
            self._finish(parsed.answer, None)
            return
        if self._attempt + 1 >= retry.attempts:
            answer = max(self._unsure)[1] if self._unsure else None
            self._finish(answer, None)
            return
        if self._attempt == 0:
            self._first_reward = self._grade(parsed.answer)
        self._attempt += 1
        if retry.how == "feedback":
            said = self._policies.context.shorten(step.text)
            self._exchanges.append(Exchange(said, feedback(problem)))
        else:
            self._exchanges, self._calls = [], 0
            self._open_environment()
        if retry.how == "template":
            pool = self._space.harness.template.pool
            self._template = (self._template + 1) % len(pool)
        self._ask()

    def _open_environment(self) -> None:
        """A world of its own for an attempt that starts afresh."""
        make, tools = self._task.environment, self._policies.tools
        if make is None:
            return
        if self._task.scorer is not None and tools.tools == ():
            return  # nothing is offered, and the scorer grades alike
        self._environment = make(self._job.item)
        self._offered = tools.offered(self._environment.tools)

    def _grade(self, answer: str | None) -> float:
        if self._environment is not None:
            return float(self._environment.reward(answer or ""))
        if answer is None or self._task.scorer is None:
            return 0.0
        return float(self._task.scorer(answer, self._job.item))

    def _finish(
        self, answer: str | None, reached: Reached | None, reward: float | None = None
    ) -> None:
        """reached: None works it out from the grade."""
        if reward is None:
            reward = self._grade(answer)
        if reward >= _RIGHT:
            reached = Reached.RIGHT
        elif reward > 0:
            reached = Reached.PARTLY
        elif reached is None:
            reached = self._why(answer)
        job = self._job
        first = reward if self._first_reward is None else self._first_reward
        self.trace = Trace(
            uid=job.item.uid,
            task=self._task.name,
            choice=job.choice,
            sample=job.sample,
            steps=tuple(self._steps),
            answer=answer,
            reward=reward,
            reached=reached,
            first_reward=first,
            seconds=self._seconds,
        )

    def _why(self, answer: str | None) -> Reached:
        last = self._steps[-1]
        scorer = self._task.scorer
        if scorer is not None and answer != last.text.strip():
            if scorer(last.text, self._job.item) >= _RIGHT:
                return Reached.NOT_EXTRACTED
        if answer is not None:
            return Reached.WRONG
        if not last.ended:
            return Reached.CUT
        extracted = self._policies.output.finds(last.text)
        return Reached.REFUSED if extracted else Reached.NO_ANSWER


def _with(
    step: Step,
    uses: tuple[ToolUse, ...],
    problem: str = "",
    answer: str | None = None,
) -> Step:
    return dataclasses.replace(step, uses=uses, problem=problem, answer=answer)


def _join(replies: Sequence[str]) -> str:
    return "\n".join(f"{REPLY}{reply}" for reply in replies)
