"""A tool call within its time."""

import queue
import threading

from components.tools import ToolCall, ToolReply
from metaharness.tasks.environment import Environment


class TimedOut(Exception):
    """The tool did not come back; its environment cannot be used any more."""


def call_tool(environment: Environment, call: ToolCall, timeout_s: float) -> ToolReply:
    """Run a call in a thread of its own.

    What an environment raises against its promise becomes an error reply.

    Raises TimedOut after ``timeout_s``; the thread is left behind, it ends with the
    process at the latest.
    """
    done: queue.Queue[ToolReply] = queue.Queue(1)

    def run() -> None:
        try:
            done.put(environment.call(call.name, call.arguments))
        except Exception as error:
            done.put(ToolReply(f"the tool failed: {type(error).__name__}", True))

    threading.Thread(target=run, daemon=True, name=f"tool {call.name}").start()
    try:
        return done.get(timeout=timeout_s)
    except queue.Empty:
        raise TimedOut(f"no reply within {timeout_s:g} s") from None
