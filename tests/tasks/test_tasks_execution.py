"""One sandbox a process: opened late, shared by threads, fresh after a fork."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from metaharness import sandbox as sandbox_module
from metaharness.errors import SandboxError
from metaharness.sandbox import open_sandbox
from metaharness.tasks.execution import (
    close_shared_sandbox,
    execution_scorer,
    shared_sandbox,
)
from metaharness.tasks.humaneval_grading import grade_humaneval
from metaharness.tasks.task import Item

ADD = Item(
    uid="add",
    question='def add(a, b):\n    """Adds."""',
    answer="    return a + b",
    meta={
        "entry_point": "add",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    },
)
SCORE = execution_scorer(grade_humaneval)


@pytest.fixture
def isolates():
    try:
        open_sandbox().close()
    except SandboxError as error:
        pytest.skip(str(error))
    close_shared_sandbox()
    yield
    close_shared_sandbox()


def test_the_score_is_one_or_zero(isolates):
    assert SCORE(ADD.answer, ADD) == 1.0
    assert SCORE("    return a - b", ADD) == SCORE("no code", ADD) == 0.0


def test_it_is_opened_once_and_late(isolates, monkeypatch):
    opened = []

    def counting():
        opened.append(open_sandbox())
        return opened[-1]

    monkeypatch.setattr(sandbox_module, "open_sandbox", counting)
    scorer = execution_scorer(grade_humaneval)
    assert not opened
    assert scorer(ADD.answer, ADD) == SCORE(ADD.answer, ADD) == 1.0
    assert len(opened) == 1 and shared_sandbox() is opened[0]
    close_shared_sandbox()
    assert scorer(ADD.answer, ADD) == 1.0
    assert len(opened) == 2


def test_threads_share_it(isolates, monkeypatch):
    opened = []

    def counting():
        opened.append(open_sandbox())
        return opened[-1]

    monkeypatch.setattr(sandbox_module, "open_sandbox", counting)
    start = threading.Barrier(4)

    def work(number):
        start.wait()
        return [
            SCORE(f"    return {'a + b' if n % 2 else 'a'}", ADD)
            for n in range(number, number + 4)
        ]

    with ThreadPoolExecutor(4) as pool:
        scores = list(pool.map(work, range(4)))
    assert scores == [[float((n + i) % 2) for i in range(4)] for n in range(4)]
    assert len(opened) == 1


def in_child(work):
    """What `work` returns in a forked child, and its exit status."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_forked_child_opens_its_own_and_leaves_its_parents(isolates):
    mine = shared_sandbox()
    assert SCORE(ADD.answer, ADD) == 1.0

    def work():
        own = shared_sandbox()
        scores = [SCORE(ADD.answer, ADD), SCORE("    return 0", ADD)]
        close_shared_sandbox()
        return [own is mine, *scores]

    assert in_child(work) == [False, 1.0, 0.0]
    assert shared_sandbox() is mine
    assert SCORE(ADD.answer, ADD) == 1.0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")
def test_a_child_forked_while_a_thread_opens_it_does_not_wait(isolates, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()

    def slow():
        if threading.current_thread() is thread:
            inside.set()
            go_on.wait(30)
        return open_sandbox()

    monkeypatch.setattr(sandbox_module, "open_sandbox", slow)
    thread = threading.Thread(target=shared_sandbox)
    thread.start()
    assert inside.wait(30)
    assert in_child(lambda: SCORE(ADD.answer, ADD)) == 1.0
    go_on.set()
    thread.join(30)
    assert SCORE(ADD.answer, ADD) == 1.0


def test_a_machine_that_cannot_isolate_runs_nothing(monkeypatch):
    close_shared_sandbox()

    def refuse():
        raise SandboxError("sandbox 'forked': expected Linux; use another machine.")

    monkeypatch.setattr(sandbox_module, "open_sandbox", refuse)
    for text in (ADD.answer, "no code"):
        with pytest.raises(SandboxError, match="expected Linux; use another machine"):
            SCORE(text, ADD)


def test_it_is_closed_at_exit(isolates):
    """The helper process ends with the process that opened it."""
    code = (
        "from metaharness.tasks.execution import shared_sandbox\n"
        "print(shared_sandbox()._zygote._process.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_loading_the_module_opens_nothing():
    code = (
        "import sys, metaharness.tasks.execution as e\n"
        "print(e._SHARED._sandbox, 'metaharness.sandbox.forked' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "None False\n"
