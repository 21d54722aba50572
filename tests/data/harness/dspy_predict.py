"""State of a dspy program as dspy saves it, and a check that dspy loads an export.

It needs nothing of this project, but an environment with the dspy whose layout the
export follows:

    python -m venv env && env/bin/pip install dspy==3.4.1
    env/bin/python tests/data/harness/dspy_predict.py

writes `dspy_predict.json`, which the tests compare an export with. And

    metaharness export RUN --to dspy --task TASK --out ours.json
    env/bin/python tests/data/harness/dspy_predict.py ours.json

loads an export, saves it again, refuses any difference, and prints what a model is then
sent. dspy 2.6.27 and 3.0.4 load it as well.
"""

import json
import logging
import pathlib
import sys
import tempfile

import dspy
from dspy.utils import DummyLM

HERE = pathlib.Path(__file__).parent
INSTRUCTIONS = "You answer briefly.\n\nGive the number only."
DEMOS = (("What is 7 + 5?", "12"), ('Write "é" and {x}.\n', "é\n{x}"))


def write() -> None:
    """The stored file."""
    signature = dspy.Signature("question -> answer", INSTRUCTIONS)
    program = dspy.Predict(signature)
    program.demos = [dspy.Example(question=q, answer=a) for q, a in DEMOS]
    program.save(HERE / "dspy_predict.json")


def check(path: pathlib.Path) -> None:
    """Load, save again, compare; then ask a model that only records."""
    warned = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = warned.append
    logging.getLogger("dspy").addHandler(handler)
    program = dspy.Predict("question -> answer")
    program.load(path)
    assert not warned, [record.getMessage() for record in warned]
    with tempfile.TemporaryDirectory() as folder:
        again = pathlib.Path(folder) / "again.json"
        program.save(again)
        saved = json.loads(again.read_text("utf-8"))
    ours = json.loads(path.read_text("utf-8"))
    del ours["metadata"], saved["metadata"]
    assert saved == ours, "dspy saves another state than it loaded"
    model = DummyLM([{"answer": "recorded"}])
    with dspy.context(lm=model):
        assert program(question="THE QUESTION").answer == "recorded"
    sent = model.history[-1]["messages"]
    shown = [(m["role"], m["content"]) for m in sent]
    assert ours["signature"]["instructions"].splitlines()[0] in shown[0][1]
    assert "THE QUESTION" in shown[-1][1]
    turns = shown[1:-1]
    assert len(turns) == 2 * len(ours["demos"])
    for place, demo in enumerate(ours["demos"]):
        (asker, asked), (_, answered) = turns[2 * place : 2 * place + 2]
        assert asker == "user" and demo["question"].strip() in asked
        assert demo["answer"].strip() in answered
    for role, content in shown:
        print(f"--- {role}\n{content}")
    print(f"--- dspy {dspy.__version__} loaded {len(ours['demos'])} demonstrations")


if __name__ == "__main__":
    check(pathlib.Path(sys.argv[1])) if len(sys.argv) > 1 else write()
