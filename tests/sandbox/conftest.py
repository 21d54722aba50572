"""Sandboxes for the tests: one for each file, skipped where none can be opened."""

import sys

import pytest

from metaharness.sandbox import open_sandbox
from metaharness.sandbox.open import SANDBOXES


@pytest.fixture(scope="module", params=sorted(SANDBOXES))
def sandbox(request):
    if sys.platform != "linux":
        pytest.skip("no sandbox for this system")
    with open_sandbox(request.param) as opened:
        yield opened
