"""The site: `make docs` builds it into build/site."""

import os
import re
import sys
import tomllib
from pathlib import Path

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook

HERE = Path(__file__).parent
ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = PROJECT["urls"]["Source"]
os.environ["PYTHONWARNINGS"] = "ignore"  # in tutorials: of their tools

project = "fastweights"
author = PROJECT["authors"][0]["name"]
project_copyright = author
release = re.search(r'^__version__ = "(.*)"', (ROOT / "src/fastweights/__init__.py").read_text(), re.MULTILINE)[1]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
default_role = "code"
nitpicky = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
myst_url_schemes = {
    **dict.fromkeys(("http", "https", "mailto")),
    "results": {"url": "{{path}}"},
    "file": {"url": f"{SOURCE}/blob/main/{{{{path}}}}"},
}
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_google_docstring = True
napoleon_use_param = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"fastweights {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["../build/published"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#b45309", "color-brand-content": "#b45309"},
    "dark_css_variables": {"color-brand-primary": "#fbbf24", "color-brand-content": "#fbbf24"},
    "footer_icons": [],
}

# The tutorials run against what was checked out.
sys.path.insert(0, str(ROOT / "src"))


def _at_home(app, name, text):
    """A page for the site: links to the published results and to files that are no pages; patterns that match."""
    kept = (line for line in text[0].split("\n") if name != "index" or "*" not in line or any(HERE.glob(f"{line}.md")))
    text[0], up = "\n".join(kept), "../" * name.count("/")
    page = re.sub(r"(?<!!)(\[[^]]*\]\()(?:\.\./)+(results/[^)]*?)\.md\)", rf"\1results:{up}\2.html)", text[0])
    page = re.sub(r"(?<!!)(\[[^]]*\]\()(?:\.\./)+(results/[^)]*)\)", rf"\1results:{up}\2)", page)
    text[0] = re.sub(r"(?<!!)(\[[^]]*\]\()(?:\.\./)+((?!results/)[^)]*)\)", r"\1file:\2)", page)

    if name == "play":
        text[0] = text[0].replace("\n\n", "\n\n**[Open the page](results:play/index.html)**, or at home:\n\n", 1)
    if name.startswith("tutorials/"):
        text[0] += f"\n\n*[This page as a notebook](results:../notebooks/{Path(name).name}.ipynb).*\n"


def _notebooks(app):
    """The tutorials as notebooks, beside the site's pages."""
    folder = ROOT / "build" / "published" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    for page in (HERE / "tutorials").glob("*.md"):
        nbformat.write(read_myst_markdown_notebook(page.read_text()), folder / f"{page.stem}.ipynb")


def setup(app):
    """Sphinx calls this."""
    app.connect("builder-inited", _notebooks)
    app.connect("source-read", lambda app, name, text: _at_home(app, name, text))
