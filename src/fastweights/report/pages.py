"""Pages: the same sections as Markdown and as HTML that needs nothing but itself, and an index that links them."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from .style import QUICK, colour_of
from .tables import markdown, words

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --page: #fff; --soft: #59636e; --line: #d1d9e0; --box: #f6f8fa;
  --quick: #fff1c2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --page: #0d1117; --soft: #9198a1; --line: #3d444d; --box: #161b22; --quick: #4a3800 }
}
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem 1rem 3rem;
  color: var(--ink); background: var(--page); overflow-wrap: break-word }
p, pre { max-width: 46rem }
h1 { font-size: 1.7rem; line-height: 1.2 } h2 { font-size: 1.2rem; margin-top: 2.2rem }
a { color: #0969da } @media (prefers-color-scheme: dark) { a { color: #4493f8 } }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right }
th { color: var(--soft); font-weight: 600 } td:first-child, th:first-child { padding-left: 0 }
.words { text-align: left } td.words { min-width: 5.5rem }
th { vertical-align: bottom }
@media (max-width: 40rem) { table { font-size: .78rem } th, td { padding: .3rem .25rem } td.words { min-width: 4rem } }
i { display: inline-block; width: .65em; height: .65em; border-radius: 50%; margin-right: .45em }
pre { background: var(--box); padding: .7rem; border-radius: 6px; white-space: pre-wrap; font-size: .85rem }
img { display: block; width: 100%; height: auto; max-width: 46rem }
img.raster { background: #fff; border-radius: 6px }
.quick { background: var(--quick); padding: .5rem .8rem; border-radius: 6px; font-weight: 600 }
"""


@dataclass(frozen=True)
class Section:
    """A heading, text, perhaps a table, a figure and the commands that made them."""

    heading: str
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: Path | None = None  # a PNG file; the SVG beside it, if there is one, is shown in its place in HTML
    commands: Sequence[str] = ()


def as_markdown(title: str, sections: Sequence[Section], folder: Path, *, quick: bool = False) -> str:
    """For a file in `folder`, to which the figures are linked."""
    parts = [f"# {title}", *([f"**{QUICK}.**"] if quick else [])]
    for section in sections:
        parts.append(f"## {section.heading}")
        if section.text:
            parts.append(section.text)
        if section.rows:
            parts.append(markdown(section.header, section.rows))
        if section.figure is not None:
            parts.append(f"![{section.heading}]({section.figure.relative_to(folder)})")
        if section.commands:
            parts.append("```\n" + "\n".join(section.commands) + "\n```")
    return "\n\n".join(parts) + "\n"


def as_html(title: str, sections: Sequence[Section], *, home: str = "", quick: bool = False) -> str:
    """One file, figures included.

    Args:
        home: the address of the index, as seen from this file.
        quick: it is a quick look, which the page then says.
    """
    parts = [_head(title)]
    if home:
        parts.append(f'<p><a href="{html.escape(home)}">All reports</a></p>')
    parts.append(f"<h1>{html.escape(title)}</h1>")
    if quick:
        parts.append(f'<p class="quick">{QUICK}</p>')
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph]
        if section.rows:
            parts.append('<div class="wide"><table>')
            in_words = words(section.rows)
            cells = (("th", section.header), *(("td", row) for row in section.rows))
            parts += ["<tr>" + "".join(map(_cell, repeat(tag), row, in_words)) + "</tr>" for tag, row in cells]
            parts.append("</table></div>")
        if section.figure is not None:
            parts.append(_image(section.heading, section.figure))
        if section.commands:
            parts.append(f"<pre>{html.escape(chr(10).join(section.commands))}</pre>")
    return "\n".join(parts) + "\n"


def index(title: str, links: Mapping[str, str]) -> str:
    """A page that links others: by address, their titles."""
    items = [f'<li><a href="{html.escape(where)}">{html.escape(name)}</a></li>' for where, name in links.items()]
    return "\n".join([_head(title), f"<h1>{html.escape(title)}</h1>", "<ul>", *items, "</ul>"]) + "\n"


def title_of(page: str) -> str:
    """The title of a page that was written here.

    >>> title_of(as_html("a < b", []))
    'a < b'
    """
    return html.unescape(page.partition("<title>")[2].partition("</title>")[0])


def _head(title: str) -> str:
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    )


def _cell(tag: str, text: str, in_words: bool) -> str:
    colour = colour_of(text) if tag == "td" else None
    dot = f'<i style="background: {colour}"></i>' if colour else ""
    kind = ' class="words"' if in_words else ""
    return f"<{tag}{kind}>{dot}{html.escape(_unbroken(text))}</{tag}>"


def _unbroken(text: str) -> str:
    r"""Where there is no room for a number and its spread in one line, the spread is whole in the next.

    >>> _unbroken("1.43 ± 0.56"), _unbroken("300k (220k to 321k)")
    ('1.43 ±\xa00.56', '300k (220k\xa0to\xa0321k)')
    """
    text = text.replace(" ± ", " ±\u00a0")
    return re.sub(r"\([^()]{,22}\)", lambda found: found[0].replace(" ", "\u00a0"), text)


def _image(name: str, png: Path) -> str:
    svg = png.with_suffix(".svg")
    shown, kind, style = (svg, "svg+xml", "") if svg.exists() else (png, "png", ' class="raster"')
    data = base64.b64encode(shown.read_bytes()).decode()
    return f'<img alt="{html.escape(name)}"{style} src="data:image/{kind};base64,{data}">'
