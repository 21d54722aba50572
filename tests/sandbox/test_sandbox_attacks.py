"""No attack of the list reaches anything, and every benign program is right."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import attack_list
import pytest
from attack_list import load_lines, sandbox_attacks

HOST_SECRET = "the attacks look for this name"
ROOT = Path(__file__).parents[2]


# First in this file: its process sets the same bait as the other tests.
def test_walls_hold_without_root_or_namespaces():
    """The filter alone: no capabilities, and the kernel refuses new namespaces."""
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("needs unshare and setpriv (util-linux)")
    limit = "echo 0 > /proc/sys/user/max_user_namespaces"
    bare = "setpriv --bounding-set=-all --inh-caps=-all --no-new-privs"
    script = f'{limit} && exec {bare} "$@"'
    outer = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
    if subprocess.run([*outer, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespace to take rights away in")
    done = subprocess.run(
        [*outer, sys.executable, attack_list.__file__],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["failures"] == {}
    assert not {"namespaces", "nobody"} & set(report["features"])
    assert (report["attacks"], report["benign"]) == (94, 34)


@pytest.fixture(scope="module")
def baited():
    with attack_list.bait() as seen:
        yield seen


@pytest.mark.parametrize("attack", sandbox_attacks(), ids=lambda a: a["name"])
def test_an_attack_is_contained(sandbox, baited, attack):
    start = time.monotonic()
    results = attack_list.run(sandbox, attack)
    won = attack_list.verdict(attack, results, time.monotonic() - start)
    assert won is None
    assert baited == []


def test_nothing_outlives_the_attacks(sandbox, baited):
    time.sleep(2.0)
    assert attack_list.canaries() == [] and baited == []


@pytest.mark.parametrize("program", load_lines("benign"), ids=lambda p: p["name"])
def test_a_benign_program_gives_its_answer(sandbox, program):
    got = attack_list.run_benign(sandbox, program)
    assert repr(got) == repr(program["output"])
