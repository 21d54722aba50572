"""Settings of every test run: CPU, no reuse of random keys, repeatable examples."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis  # noqa: E402
import jax  # noqa: E402

# A key that is used twice gives two draws that are one; JAX then raises.
jax.config.update("jax_debug_key_reuse", True)

hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=40,
    database=None,
)
hypothesis.settings.load_profile("repeatable")


def pytest_runtest_setup(item):
    """Fast tests compile much and compute little: compile in half the time."""
    quick = item.get_closest_marker("slow") is None
    jax.config.update("jax_disable_most_optimizations", quick)
