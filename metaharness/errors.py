"""Error types, one for each boundary that a user's input crosses."""


class InputError(ValueError):
    """Input that cannot be honoured: what was expected, what was found, the remedy.

    The command line prints its message as one line and exits with status 2.
    """


class WeightsError(InputError):
    """A model's weights, configuration or tokenizer cannot be used as they are."""


class TaskError(InputError):
    """A task's data is missing, malformed, or leaks between splits."""


class HarnessError(InputError):
    """A harness, a slot or a harness file is not valid."""


class RunError(InputError):
    """A run directory is missing, of another kind, or not complete."""


class SandboxError(InputError):
    """Isolated execution is not possible here, or was asked for wrongly."""
