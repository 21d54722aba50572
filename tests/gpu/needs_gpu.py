"""What every test of this folder is marked by.

    JAX_PLATFORMS=cuda,cpu python -m pytest tests/gpu

Elsewhere they are skipped.
"""

import jax
import pytest

MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        jax.default_backend() != "gpu",
        reason="needs a GPU: JAX_PLATFORMS=cuda,cpu python -m pytest tests/gpu",
    ),
]
