"""Whether the links of a built site to itself lead somewhere: python docs/links.py build/site"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag


class Page(HTMLParser):
    """What a page links, and the places in it that can be linked."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.places.add(value)


def broken(site: Path) -> list[str]:
    """Links to files and places that are not there, one line each."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for link in page.links:
            target, place = urldefrag(link)
            if ":" in target.split("/")[0] or target.startswith("//"):
                continue
            there = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            there = there / "index.html" if there.is_dir() else there
            if not there.exists():
                found.append(f"{path.relative_to(site.resolve())}: there is no {target}")
            elif place and there in pages and unquote(place) not in pages[there].places:
                found.append(f"{path.relative_to(site.resolve())}: {target or 'the page'} has no #{place}")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/links.py SITE")
    problems = broken(Path(sys.argv[1]))
    print("\n".join(problems) or "all local links lead somewhere")
    sys.exit(bool(problems))
