"""From texts to tokens: the pieces that a prompt is put together from.

A prompt is ``head + shot + ... + shot + question`` and then the answer. Each piece is
tokenised alone, so that a pool of candidates can be encoded piece by piece; that the
pieces equal the tokens of the whole conversation is checked where a prompt is shown.
"""

from collections.abc import Sequence
from functools import lru_cache

from components.exemplars import Exemplar
from components.templates import Template
from metaharness.errors import HarnessError
from metaharness.harness.turns import (
    Exchange,
    conversation,
    later_turns,
    plain_head,
    plain_later,
    plain_shot,
    shot_turns,
    system_turns,
)
from metaharness.model.tokenizer import Tokenizer

_QUESTION, _ANSWER = "question text", "answer text"


class Renderer:
    """Tokens of heads, exemplars, questions and answers for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._head_text = lru_cache(maxsize=None)(self._find_head)

    def head(self, template: Template) -> list[int]:
        """Tokens before the first exemplar, at least one (it is the attention sink)."""
        ids = self._tokenizer.encode(self._head_text(template.chat, template.system))
        if template.chat and ids:
            return ids
        sink = self._tokenizer.bos_id
        if sink is None:
            sink = self._tokenizer.eos_ids[0]
        return ids if ids[:1] == [sink] else [sink, *ids]

    def shot(self, template: Template, exemplar: Exemplar) -> list[int]:
        """Tokens of one exemplar: its question turn and its answer turn; none under a
        template that leaves exemplars out."""
        if not template.exemplars:
            return []
        return self._tokenizer.encode(self._shot_text(template, exemplar))

    def question(self, template: Template, question: str) -> list[int]:
        """Tokens of the final question turn, up to where the answer starts."""
        return self._tokenizer.encode(self._question_text(template, question))

    def dialogue(
        self, template: Template, question: str, exchanges: Sequence[Exchange]
    ) -> list[int]:
        """Tokens of the question turn and of what followed it, up to where the model
        goes on; without exchanges those of ``question``."""
        if not exchanges:
            return self.question(template, question)
        if not template.chat:
            asked = self._question_text(template, question)
            return self._tokenizer.encode(asked + plain_later(exchanges))
        turns = [*conversation(template, (), question), *later_turns(exchanges)]
        text = self._tokenizer.chat(turns, add_generation_prompt=True)
        head = self._head_text(True, template.system)
        return self._tokenizer.encode(text.removeprefix(head))

    def answer(self, answer: str) -> list[int]:
        """Tokens of a gold answer: the same under every template."""
        ids = self._tokenizer.encode(answer)
        if not ids:
            raise HarnessError(
                f"answer: expected text that gives tokens, got {answer!r}; "
                "remove the item or fill the answer in"
            )
        return ids

    def prompt(
        self, template: Template, exemplars: Sequence[Exemplar], question: str
    ) -> list[int]:
        """Tokens of a whole prompt.

        Raises HarnessError where the pieces differ from the conversation's own tokens
        (a chat template whose turns depend on each other).
        """
        ids = self.head(template)
        for exemplar in exemplars:
            ids += self.shot(template, exemplar)
        ids += self.question(template, question)
        if template.chat:
            whole = self._tokenizer.chat_ids(
                conversation(template, exemplars, question),
                add_generation_prompt=True,
            )
            # A chat that begins with its first turn has a sink that it does not write.
            written = ids if self._head_text(True, template.system) else ids[1:]
            if whole != written:
                raise HarnessError(
                    f"template {template.name!r}: expected a chat template whose turns "
                    "do not depend on each other, got other tokens for the whole "
                    "conversation; use a plain template (chat = false)"
                )
        return ids

    def prompt_text(
        self, template: Template, exemplars: Sequence[Exemplar], question: str
    ) -> str:
        """A whole prompt as a person reads it, special tokens included."""
        shots = "".join(self._shot_text(template, e) for e in exemplars)
        head = self._head_text(template.chat, template.system)
        return head + shots + self._question_text(template, question)

    def _find_head(self, chat: bool, system: str | None) -> str:
        if not chat:
            return plain_head(system)
        turns = [
            {"role": "user", "content": _QUESTION},
            {"role": "assistant", "content": _ANSWER},
        ]
        start = system_turns(system)
        one = self._tokenizer.chat([*start, *turns], add_generation_prompt=False)
        two = self._tokenizer.chat(
            [*start, *turns, *turns], add_generation_prompt=False
        )
        pair = two[len(one) :]
        if not two.startswith(one) or not one.endswith(pair):
            raise HarnessError(
                "chat template: expected turns that render the same at every place, "
                "got a template that changes earlier turns; use plain templates "
                "(chat = false) with this model"
            )
        return one[: len(one) - len(pair)]

    def _shot_text(self, template: Template, exemplar: Exemplar) -> str:
        if not template.chat:
            return plain_shot(template, exemplar)
        turns = [*system_turns(template.system), *shot_turns(template, exemplar)]
        text = self._tokenizer.chat(turns, add_generation_prompt=False)
        return text.removeprefix(self._head_text(True, template.system))

    def _question_text(self, template: Template, question: str) -> str:
        if not template.chat:
            return template.ask(question)
        turns = conversation(template, (), question)
        text = self._tokenizer.chat(turns, add_generation_prompt=True)
        return text.removeprefix(self._head_text(True, template.system))
