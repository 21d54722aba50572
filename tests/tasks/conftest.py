"""Every test of the tasks prepares its data in a cache folder of its own run."""

from pathlib import Path

import pytest

# Real copies of public data, beside the checkout; never part of it.
SHARED = Path(__file__).parents[2].parent / "shared/data"


@pytest.fixture(autouse=True, scope="session")
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAHARNESS_CACHE", str(folder))
        yield folder


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("METAHARNESS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shared():
    if not SHARED.is_dir():
        pytest.skip(f"real data: no folder {SHARED}")
    return SHARED
