"""Pages: the same sections as Markdown and as HTML that needs nothing but itself."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .tables import markdown

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } th, td { border-bottom: 1px solid #ddd; padding: .3rem .8rem }
td { text-align: right } td:first-child, th:first-child { text-align: left }
pre { background: #f5f5f5; padding: .6rem; overflow-x: auto } img { max-width: 100% }
"""


@dataclass(frozen=True)
class Section:
    """A heading, what is said, perhaps a table, a figure and the commands that made them."""

    heading: str
    text: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    figure: Path | None = None  # a PNG file
    commands: Sequence[str] = ()


def as_markdown(title: str, sections: Sequence[Section], folder: Path) -> str:
    """For a file in `folder`, to which the figures are linked."""
    parts = [f"# {title}"]
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


def as_html(title: str, sections: Sequence[Section]) -> str:
    """One file, figures included."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{html.escape(title)}</h1>")
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text.split("\n\n") if paragraph]
        if section.rows:
            parts.append("<table><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in section.header) + "</tr>")
            for row in section.rows:
                parts.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>")
            parts.append("</table>")
        if section.figure is not None:
            picture = base64.b64encode(section.figure.read_bytes()).decode()
            parts.append(f'<img alt="{html.escape(section.heading)}" src="data:image/png;base64,{picture}">')
        if section.commands:
            parts.append(f"<pre>{html.escape(chr(10).join(section.commands))}</pre>")
    return "\n".join(parts) + "\n"
