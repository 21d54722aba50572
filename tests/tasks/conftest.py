"""Every test of the tasks prepares its data in a cache folder of its own run."""

from pathlib import Path

import pytest

# Real copies of public data, beside the checkout; never part of it.
SHARED = Path(__file__).parents[2].parent / "shared/data"


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True, scope="module")
def cache(cache_folder):
    """Set for these files only: others look for the embedded model in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAHARNESS_CACHE", str(cache_folder))
        yield cache_folder


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shared():
    if not SHARED.is_dir():
        pytest.skip(f"real data: no folder {SHARED}")
    return SHARED
