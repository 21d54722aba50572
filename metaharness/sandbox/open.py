"""Opening a sandbox by name."""

from collections.abc import Callable, Iterable

from metaharness.errors import SandboxError
from metaharness.sandbox import forked
from metaharness.sandbox.protocol import Sandbox

SANDBOXES: dict[str, Callable[[], Sandbox]] = {forked.NAME: forked.ForkedSandbox}
AUTO = "auto"


def open_sandbox(name: str = AUTO, *, need: Iterable[str] = ()) -> Sandbox:
    """A sandbox; "auto" takes the first that works here and has all needed features.

    need: names of `Sandbox.features`. Raises SandboxError, and so never runs anything
    unconfined, where none qualifies.
    """
    if name != AUTO and name not in SANDBOXES:
        known = ", ".join(map(repr, (AUTO, *SANDBOXES)))
        raise SandboxError(f"sandbox: expected one of {known}, got {name!r}; name one.")
    needed = frozenset(need)
    reasons = []
    for candidate in SANDBOXES if name == AUTO else (name,):
        try:
            sandbox = SANDBOXES[candidate]()
        except SandboxError as error:
            reasons.append(str(error))
            continue
        missing = sorted(needed - sandbox.features)
        if not missing:
            return sandbox
        sandbox.close()
        reasons.append(
            f"sandbox {candidate!r}: expected the features {sorted(needed)}, got one "
            f"without {missing}; need less, or use a machine that allows them."
        )
    raise SandboxError(" ".join(reasons))
