"""The list of attacks: runs each against a sandbox and says which of them won.

As a script it runs all of them and the benign programs, and prints the failures as
JSON: for a process with other rights than the one that runs the tests.
"""

import contextlib
import glob
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from metaharness.sandbox import Limits, Outcome, Result, Sandbox, open_sandbox

DATA = Path(__file__).parents[1] / "data" / "sandbox"
HOST_SECRET = "a global of the module that calls the sandbox"
PORT = 47613
PATH = "/tmp/mh.sock"
LIMITS = Limits(cpu_s=0.3, wall_s=1.0, memory_bytes=64 << 20)
HOOK_LIMITS = Limits(cpu_s=0.3, wall_s=1.0, memory_bytes=16 << 20)
_ENDED = {Outcome.ERROR, Outcome.REFUSED, Outcome.RESULT, Outcome.CRASHED}
_TOKENS = {
    "error": _ENDED,
    "crash": {Outcome.CRASHED},
    "limit:cpu": {Outcome.CPU},
    "limit:wall": {Outcome.WALL},
    "limit:memory": {Outcome.MEMORY},
    "limit:output": {Outcome.OUTPUT},
    "limit:result": {Outcome.RESULT},
    "limit:model_calls": {Outcome.CALLS},
    "limit:prompt": {Outcome.CALLS},
}


def load_lines(name: str) -> list[dict]:
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def sandbox_attacks() -> list[dict]:
    return [attack for attack in load_lines("attacks") if attack["layer"] == "sandbox"]


@contextlib.contextmanager
def bait() -> Iterator[list[str]]:
    """What attacks reach for; yields the list of connections that were made."""
    seen: list[str] = []
    stop = threading.Event()
    tcp = socket.create_server(("127.0.0.1", PORT))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", PORT))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(PATH)
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(PATH)
    unix.listen()
    sockets = {"tcp": tcp, "udp": udp, "unix": unix}
    os.environ["METAHARNESS_CANARY"] = "canary"

    def listen(name: str, end: socket.socket) -> None:
        end.settimeout(0.1)
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                end.recv(1) if name == "udp" else end.accept()[0].close()
                seen.append(name)

    threads = [threading.Thread(target=listen, args=pair) for pair in sockets.items()]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for end in sockets.values():
            end.close()
        os.unlink(PATH)
        del os.environ["METAHARNESS_CANARY"]


def canaries() -> list[str]:
    return [
        path
        for folder in ("/tmp", "/", os.getcwd())
        for path in glob.glob(os.path.join(folder, "mh_canary_*"))
    ]


def run(sandbox: Sandbox, attack: dict) -> list[Result]:
    """The attack's results, one for each of its runs."""
    hook = attack["entry"] == "hook"
    program = sandbox.load(attack["code"], limits=HOOK_LIMITS if hook else LIMITS)
    results = []
    for number in range(attack["runs"]):
        if hook:
            results.append(program.call("preprocess", "some text"))
        else:
            tools = {"model": lambda prompt: "reply to " + prompt[:40]}
            results.append(program.call("solve", f"question {number}", tools=tools))
    return results


def verdict(attack: dict, results: list[Result], seconds: float) -> str | None:
    """Why the attack counts as won, None where it was contained."""
    for result in results:
        if isinstance(result.value, str) and result.value.startswith("ESCAPED"):
            return result.value
        wanted = set().union(*(_TOKENS.get(t, ()) for t in attack["expect"].split("|")))
        refused = "[Errno 1]" in result.error  # the system call that it lives on
        stopped = result.outcome in wanted or refused
        if attack["kind"] in ("killed", "refused") and not stopped:
            return f"ended with {result.outcome.value}: {result.error or result.value}"
    if seconds > 8.0 * len(results):
        return f"took {seconds:.1f} s"
    if canaries():
        return f"left {canaries()}"
    return None


def run_benign(sandbox: Sandbox, program: dict) -> object:
    """What a benign program returned, or its failed result."""
    loaded = sandbox.load(program["code"], limits=Limits(cpu_s=2.0, wall_s=10.0))
    given = program["input"]
    if "x" in given:
        result = loaded.call(program["entry"], given["x"])
    else:
        replies = iter(given["replies"])
        tools = {"model": lambda prompt: next(replies)}
        result = loaded.call(program["entry"], given["question"], tools=tools)
        if result.calls != program["model_calls"]:
            return result
    return result.value if result.outcome is Outcome.OK else result


def main() -> None:
    failures = {}
    with bait() as seen, open_sandbox() as sandbox:
        modes = sorted(sandbox.features)
        attacks, benign = sandbox_attacks(), load_lines("benign")
        for attack in attacks:
            start = time.monotonic()
            results = run(sandbox, attack)
            won = verdict(attack, results, time.monotonic() - start)
            if won:
                failures[attack["name"]] = won
        for program in benign:
            got = run_benign(sandbox, program)
            if repr(got) != repr(program["output"]):
                failures[program["name"]] = repr(got)
        time.sleep(2.0)  # a process that outlived its call would leave a file by now
        if canaries() or seen:
            failures["after"] = f"files {canaries()}, connections {seen}"
    print(
        json.dumps(
            {
                "uid": os.getuid(),
                "features": modes,
                "attacks": len(attacks),
                "benign": len(benign),
                "failures": failures,
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
