"""The learned harness as data: safe JSON that loads back."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.exemplars import Exemplar
from components.templates import Template
from metaharness.errors import HarnessError
from metaharness.harness.policy_file import policy_from_json
from metaharness.harness.slots import POLICIES, Choice, Exemplars, Harness, Templates

FORMAT = 1


@dataclass(frozen=True)
class Learned:
    """A harness with what was learned about it.

    harness: slots and pools; choices: task name -> the deployed choice; probabilities:
    slot -> task name -> chance of each candidate; theta_digest: sha256 of the weights
    that it was learned for; model: their name.
    """

    harness: Harness
    choices: Mapping[str, Choice]
    probabilities: Mapping[str, Mapping[str, tuple[float, ...]]]
    model: str
    theta_digest: str

    def choice(self, task: str) -> Choice:
        """The deployed choice for a task.

        Raises HarnessError for an unknown task.
        """
        if task in self.choices:
            return self.choices[task]
        raise HarnessError(
            f"harness: expected a task among {', '.join(self.choices)}, got {task!r}; "
            "train on this task, or evaluate one of these"
        )

    def parts(self, task: str | None = None) -> tuple[Template, tuple[Exemplar, ...]]:
        """The deployed template and exemplars, in prompt order.

        task: None where only one was learned.

        Raises HarnessError for an unknown task, and for none where it takes one.
        """
        if task is None:
            if len(self.choices) != 1:
                raise HarnessError(
                    f"task: expected one of {', '.join(self.choices)}, got none; say "
                    "which task's harness to use"
                )
            task = next(iter(self.choices))
        return self.harness.parts(self.choice(task))

    def as_json(self) -> dict[str, Any]:
        """Plain lists, dicts, strings and numbers."""
        slots: dict[str, Any] = {
            "template": {
                "pool": [dataclasses.asdict(t) for t in self.harness.template.pool]
            }
        }
        if self.harness.exemplars:
            slots["exemplars"] = {
                "k": self.harness.exemplars.k,
                "pool": [dataclasses.asdict(e) for e in self.harness.candidates],
                "allowed": [list(row) for row in self.harness.exemplars.allowed],
            }
        for slot in self.harness.policy_slots:
            pool = self.harness.pool(slot)
            slots[slot] = {"pool": [dataclasses.asdict(policy) for policy in pool]}
        return {
            "format": FORMAT,
            "model": self.model,
            "theta_digest": self.theta_digest,
            "slots": slots,
            "probabilities": {
                slot: {task: list(p) for task, p in own.items()}
                for slot, own in self.probabilities.items()
            },
            "chosen": {
                task: {
                    "template": self.harness.template.pool[choice.template].name,
                    "exemplars": [
                        self.harness.candidates[i].uid for i in choice.exemplars
                    ],
                    **{
                        slot: self.harness.pool(slot)[getattr(choice, slot)].name
                        for slot in self.harness.policy_slots
                    },
                }
                for task, choice in self.choices.items()
            },
        }


def learned_from_json(data: Any, *, source: str = "harness.json") -> Learned:
    """The inverse of ``as_json``.

    Raises HarnessError naming ``source`` where the data is of another form.
    """
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise HarnessError(
            f"{source}: expected a learned harness of format {FORMAT}, got {found!r}; "
            "give the harness.json of a run"
        )
    try:
        slots = data["slots"]
        templates = Templates(tuple(Template(**t) for t in slots["template"]["pool"]))
        exemplars = None
        if "exemplars" in slots:
            own = slots["exemplars"]
            exemplars = Exemplars(
                tuple(Exemplar(**e) for e in own["pool"]),
                own["k"],
                tuple(tuple(row) for row in own["allowed"]),
            )
        policies = {
            slot: tuple(policy_from_json(slot, one) for one in slots[slot]["pool"])
            for slot in POLICIES
            if slot in slots
        }
        harness = Harness(exemplars, templates, **policies)
        ids = {e.uid: i for i, e in enumerate(harness.candidates)}
        names = {t.name: i for i, t in enumerate(templates.pool)}
        places = {
            slot: {policy.name: i for i, policy in enumerate(pool)}
            for slot, pool in policies.items()
        }
        choices = {
            task: Choice(
                tuple(ids[uid] for uid in chosen["exemplars"]),
                names[chosen["template"]],
                **{slot: place[chosen[slot]] for slot, place in places.items()},
            )
            for task, chosen in data["chosen"].items()
        }
        probabilities = {
            slot: {task: tuple(p) for task, p in own.items()}
            for slot, own in data["probabilities"].items()
        }
        return Learned(
            harness, choices, probabilities, data["model"], data["theta_digest"]
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise HarnessError(
            f"{source}: expected a complete learned harness, got {error!r}; "
            "use the file as the run wrote it"
        ) from error


def load_learned(path: Path) -> Learned:
    """Read ``harness.json``, or the one inside a run directory.

    Raises HarnessError when there is none or it is not one.
    """
    path = Path(path)
    file = path / "harness.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HarnessError(
            f"{file}: expected a learned harness, found no such file; name a run "
            "directory or its harness.json"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise HarnessError(f"{file}: expected JSON, got {error}; restore it") from error
    return learned_from_json(data, source=str(file))
