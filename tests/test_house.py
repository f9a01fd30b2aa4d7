"""The rooms of the package, and which may know which."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import fastweights

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "fastweights"
MAY_IMPORT = {
    "base": {"base"},
    "memory": {"memory"},
    "models": {"base", "memory", "models"},
    "tasks": {"base", "tasks"},
    "training": {"base", "training"},
    "paper": {"base", "models", "paper", "report", "tasks", "training"},
    "report": {"base", "report"},
    "play": {"base", "models", "play"},
    "cli": {"base", "cli", "models", "paper", "play", "report", "tasks", "training"},
}


def rooms_imported_by(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            package = ["fastweights", *path.relative_to(PACKAGE).parent.parts]
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = base + (node.module.split(".") if node.module else [])
            names = [".".join([*parts, alias.name]) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("fastweights."))


def test_imports_point_one_way():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(MAY_IMPORT)
    for room, allowed in MAY_IMPORT.items():
        for path in (PACKAGE / room).rglob("*.py"):
            assert set(rooms_imported_by(path)) <= allowed, path


def test_the_layer_needs_torch_alone():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [dependency.split(">")[0] for dependency in project["dependencies"]] == ["torch"]
    code = "import sys, torch; before = set(sys.modules); from fastweights import FastWeights; "
    code += "print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split() if not name.startswith("_sysconfigdata")}
    assert loaded - set(sys.stdlib_module_names) <= {"fastweights", "torch"}


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == fastweights.__version__
    assert f"version: {fastweights.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {fastweights.__version__}" in (ROOT / "CHANGELOG.md").read_text()
