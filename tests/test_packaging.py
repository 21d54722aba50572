"""What is installed is what the checkout holds, and every import is declared."""

import ast
import configparser
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("metaharness", "components", "estimators")
DATA_SUFFIXES = {".py", ".j2", ".css", ".json", ".jsonl", ".toml"}


@pytest.fixture(scope="module")
def setup_cfg():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def requirements(text):
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return [Requirement(line) for line in lines if line]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            source / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    command = "from setuptools import build_meta; print(build_meta.build_wheel('out'))"
    result = subprocess.run(
        [sys.executable, "-c", command],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(source / "out" / result.stdout.split()[-1]) as file:
        yield {name: file.read(name) for name in file.namelist()}


def test_the_wheel_holds_every_file_of_the_three_folders_and_nothing_else(wheel):
    expected = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        path for path in expected if Path(path).suffix not in DATA_SUFFIXES
    } == set()
    held = {name for name in wheel if ".dist-info/" not in name}
    assert expected - held == set(), "not in the wheel"
    assert held - expected == set(), "not in the checkout"


def test_the_wheel_names_its_command_licence_and_python(wheel):
    info = {
        name.split("/", 1)[1]: text for name, text in wheel.items() if "info/" in name
    }
    assert b"metaharness = metaharness.cli:main" in info["entry_points.txt"]
    metadata = info["METADATA"].decode()
    assert "Requires-Python: >=3.11" in metadata
    assert re.search("^License(-Expression)?: Apache-2.0$", metadata, re.M)
    assert any(name.endswith("LICENSE") for name in info)


@pytest.mark.parametrize("version", ["311", "312", "313"])
def test_constraints_pin_every_requirement_within_its_bounds(setup_cfg, version):
    lines = (ROOT / f"constraints-py{version}.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    options = setup_cfg["options"]
    extras = setup_cfg["options.extras_require"]
    for text in (options["install_requires"], extras["embedded"], extras["test"]):
        for requirement in requirements(text):
            pin = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), requirement
    # newer ones need Python 3.12
    assert (pins["jax"] < "0.11") == (version == "311")


def test_every_imported_package_is_declared(setup_cfg):
    declared = requirements(setup_cfg["options"]["install_requires"])
    declared += requirements(setup_cfg["options.extras_require"]["embedded"])
    names = {canonicalize_name(requirement.name) for requirement in declared}
    by_module = importlib.metadata.packages_distributions()
    undeclared = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for module in _imported(path):
                owners = {canonicalize_name(name) for name in by_module.get(module, ())}
                if not owners & names:
                    undeclared.setdefault(module, []).append(path.name)
    assert undeclared == {}


def test_version_is_written_in_one_place(setup_cfg):
    version = setup_cfg["metadata"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            assert f'"{version}"' not in path.read_text(), path


def _imported(path):
    """Top-level modules from elsewhere that a file imports."""
    ours = {*PACKAGES, "experiments", "benchmarks"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            modules = [node.module]
        else:
            continue
        for module in modules:
            top = module.split(".")[0]
            if top not in sys.stdlib_module_names and top not in ours:
                yield top
