"""Isolated execution of programs that nobody trusts."""

from metaharness.sandbox.forked import ForkedSandbox as ForkedSandbox
from metaharness.sandbox.open import open_sandbox as open_sandbox
from metaharness.sandbox.protocol import Limits as Limits
from metaharness.sandbox.protocol import Outcome as Outcome
from metaharness.sandbox.protocol import Program as Program
from metaharness.sandbox.protocol import Result as Result
from metaharness.sandbox.protocol import Sandbox as Sandbox
from metaharness.sandbox.protocol import Tool as Tool
from metaharness.sandbox.values import Plain as Plain
