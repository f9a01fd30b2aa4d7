"""Reports: what was trained here, beside what was published, as JSON, tables, figures and pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..base.files import read_json, write_json, write_text
from ..report import comparisons, pages, tables
from ..report.pages import Section
from ..report.style import QUICK

HERE, PUBLISHED = "trained here", "published"
PROTOCOL = 2  # of searches and trainings: what was measured by another one is never mixed with it


@dataclass(frozen=True)
class Report:
    """Where reports go: beside the runs, or, to be published, among the published results.

    Args:
        runs: where the run folders are.
        results: where the published results are.
        publish: write there. What was run elsewhere stays there.
        quick: report the quick looks, which are never published.
    """

    runs: Path
    results: Path
    publish: bool = False
    quick: bool = False

    def folder(self, experiment: str) -> Path:
        """Where the report of an experiment is written."""
        return self.results if self.publish else self.runs / self.experiment(experiment) / "report"

    def experiment(self, name: str) -> str:
        """The name of the folder of runs."""
        return f"{name}-quick" if self.quick else name

    def published(self, name: str) -> Any:
        """The published JSON of this name; None if there is none, or for a quick look, which is like none of it."""
        path = self.results / f"{name}.json"
        return read_json(path) if path.exists() and not self.quick else None

    def entries(
        self, name: str, found: Sequence[Mapping[str, Any]], place: Callable[[Mapping[str, Any]], Any]
    ) -> list[dict[str, Any]]:
        """The entries to show, in order, each with its `source`.

        To be published: those that were found in place of the published ones. Otherwise: those that were found, and
        after each of them what is published of the same.
        """
        here = {place(entry): {**entry, "source": HERE} for entry in found}
        published = self.published(name) or []
        current = [entry for entry in published if entry.get("protocol") == PROTOCOL]
        if self.publish and found and len(current) < len(published):
            raise ValueError(
                f"{self.results / name}.json has results of another protocol, which are not mixed with these: "
                "move it away, or name another folder by --results"
            )
        there = {place(entry): {**entry, "source": PUBLISHED} for entry in current}
        if self.publish:
            return [entry for _, entry in sorted({**there, **here}.items(), key=lambda item: item[0])]
        return [entry for at, own in sorted(here.items()) for entry in (own, there.get(at)) if entry]

    def drawn(self, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The entries for a figure, where what is published would be beside what was trained here unmarked."""
        return [entry for entry in entries if self.publish or entry.get("source") == HERE]

    def write(
        self,
        experiment: str,
        title: str,
        sections: Sequence[Section],
        entries: Sequence[Mapping[str, Any]],
        name: str | None = None,
    ) -> None:
        """The JSON, the pages and the index that links them; says where.

        Args:
            name: of the files; None: that of the experiment.
        """
        name, folder = name or experiment, self.folder(experiment)
        plain = [{key: value for key, value in entry.items() if key != "source"} for entry in entries]
        write_json(folder / f"{name}.json", plain if self.publish else entries)
        tests = comparisons.of(name, self.drawn(entries))
        if tests:
            write_json(folder / f"{name}-tests.json", tests)
        shown = [self._published(section) for section in sections] if self.publish else sections
        home = self.results if self.publish else self.runs
        depth = len(folder.relative_to(home).parts)
        write_text(folder / f"{name}.md", pages.as_markdown(title, shown, folder, quick=self.quick))
        page = pages.as_html(title, shown, home="../" * depth + "index.html", quick=self.quick)
        write_text(folder / f"{name}.html", page)
        write_index(home)
        print(f"written: {folder / name}.html, and beside it {name}.md, {name}.json and the figures")

    @staticmethod
    def _published(section: Section) -> Section:
        """In the published results all is published."""
        if "source" not in section.header:
            return section
        header, rows = tables.without(["source"], section.header, section.rows)
        return Section(section.heading, section.text, header, rows, section.figure, section.commands)

    def show(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
        """A table in the terminal."""
        if self.quick:
            title = f"{title}. {QUICK}"
        Console().print(tables.terminal(title, *tables.without(["weights"], header, rows), caption))


def write_index(home: Path) -> None:
    """The page that links all reports of a folder of runs, or of results."""
    found = sorted({*home.glob("*.html"), *home.glob("*/report/*.html")} - {home / "index.html"})
    links = {}
    for path in found:
        title = pages.title_of(path.read_text(encoding="utf-8"))
        if path.parent.name == "report" and path.parent.parent.name.endswith("-quick"):
            title = f"{title} ({QUICK[0].lower()}{QUICK[1:]})"
        links[path.relative_to(home).as_posix()] = title
    write_text(home / "index.html", pages.index("Fast weights: reports", links))


def commands_of(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The commands that some entries were made with."""
    return sorted({entry["command"] for entry in entries if entry.get("command")})
