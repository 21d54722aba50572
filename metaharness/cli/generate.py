"""`metaharness generate`: answer one question with a learned harness."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Generate:
    """Answer a question with a run's learned harness, or without any harness."""

    question: Annotated[str, Positional, arg(metavar="QUESTION")]
    """the question; - reads it from standard input"""
    harness: Path | None = None
    """run directory or harness.json; without it the model is asked as it is"""
    task: str | None = None
    """whose harness, where the run learned several"""
    model: str | None = None
    """the run's own by default, else smollm2-135m"""
    max_new_tokens: int = 128
    """limit of the answer"""
    temperature: float = 0.0
    """0 is greedy"""
    seed: int = 0
    """of the sampled tokens"""
    show_prompt: bool = False
    """print the whole prompt before the answer"""

    def execute(self) -> int:
        """Print the answer."""
        from metaharness.harness.answer import generate
        from metaharness.harness.learned import load_learned
        from metaharness.model.adapter import has_adapter, with_adapter
        from metaharness.model.load import load_model

        learned = load_learned(self.harness) if self.harness else None
        name = self.model or (learned.model if learned else "smollm2-135m")
        question = self.question
        if question == "-":
            question = sys.stdin.read().strip()
        model = load_model(name)
        if self.harness and has_adapter(self.harness):
            model = with_adapter(model, self.harness)
        answer = generate(
            model,
            question,
            learned,
            task=self.task,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=self.seed,
        )
        if self.show_prompt:
            print(answer.prompt, end="")
        print(answer.text)
        return 0
