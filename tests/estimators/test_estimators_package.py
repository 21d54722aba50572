"""What importing the package brings along, and the example that it opens with."""

import subprocess
import sys
import textwrap

import numpy as np

import estimators as es

OURS = {"metaharness", "components", "experiments", "benchmarks"}
HEAVY = {"flax", "transformers", "orbax", "tensorflow", "tensorflow_datasets", "einops"}


def test_import_brings_no_other_folder_and_no_module_framework():
    code = (
        "import estimators, sys; print(*{name.split('.')[0] for name in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not (OURS | HEAVY) & set(loaded.stdout.split())


def test_every_public_name_exists():
    assert all(hasattr(es, name) for name in es.__all__)
    assert es.__all__ == sorted(es.__all__, key=lambda n: (not n.isupper(), n))


def test_the_opening_example_learns_the_best_subset():
    """The indented block of the package's docstring is run as it stands."""
    lines = es.__doc__.splitlines()
    block = [line for line in lines if line.startswith("    ") or not line.strip()]
    found: dict = {}
    exec(textwrap.dedent("\n".join(block)), found)
    np.testing.assert_array_equal(found["best"], [1, 3])
