"""Whether a tag can be released: python .github/release_check.py v0.1.0"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def problems(tag: str) -> list[str]:
    """What is in the way, one line each."""
    package, changes = (ROOT / "src/fastweights/__init__.py").read_text(), (ROOT / "CHANGELOG.md").read_text()
    version = re.search(r'^__version__ = "(.*)"', package, re.MULTILINE)[1]
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, __version__ in src/fastweights/__init__.py is {version}")
    if cited != version:
        found.append(f"CITATION.cff has version {cited}, src/fastweights/__init__.py {version}")
    if not re.search(rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        found.append(f"CHANGELOG.md has no heading '## [{version}] - DATE'")
    if "github.com/OWNER/" in (ROOT / "pyproject.toml").read_text():
        found.append("pyproject.toml has OWNER in place of the public address")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python .github/release_check.py TAG")
    found = problems(sys.argv[1])
    print("\n".join(found) or f"{sys.argv[1]} can be released")
    sys.exit(bool(found))
