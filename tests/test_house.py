"""The rooms of the package, and which may know which."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import fastweights
from fastweights import memory

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


def test_an_old_torch_is_refused_in_one_line():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == [f"torch>={'.'.join(map(str, memory.OLDEST))}"]
    code = "import torch; torch.__version__ = '2.5.1'; import fastweights.memory"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: fastweights needs torch 2.13 or newer, this is 2.5.1: pip install --upgrade torch"


def test_a_release_needs_a_tag_a_date_and_an_address(tmp_path):
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    for name in ("CITATION.cff", "CHANGELOG.md", "pyproject.toml", "src/fastweights/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def check(tag):
        command = [sys.executable, tmp_path / ".github/release_check.py", tag]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    version = fastweights.__version__
    assert f"the tag is v9, __version__ in src/fastweights/__init__.py is {version}" in check("v9").stdout
    address, changes = tmp_path / "pyproject.toml", tmp_path / "CHANGELOG.md"
    address.write_text(address.read_text().replace("github.com/OWNER", "github.com/somebody"))
    changes.write_text(f"# Changelog\n\n## [{version}]\n")
    assert check(f"v{version}").stdout == f"CHANGELOG.md has no heading '## [{version}] - DATE'\n"
    changes.write_text(f"# Changelog\n\n## [{version}] - 2030-01-01\n")
    assert check(f"v{version}").stdout == f"v{version} can be released\n"


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    local = [link for link in links if not link.startswith("https:")]
    assert len(local) > 5
    assert [link for link in local if not (ROOT / link.partition("#")[0]).exists()] == []


def test_on_a_package_index_the_readme_has_absolute_links():
    about = importlib.metadata.metadata("fastweights").get_payload()
    links = re.findall(r"\]\(([^)]+)\)", str(about))
    assert len(links) > 5
    assert [link for link in links if not link.startswith("https://")] == []


def test_versions_agree():
    assert importlib.metadata.version("fastweights") == fastweights.__version__
    assert f"version: {fastweights.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{fastweights.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
