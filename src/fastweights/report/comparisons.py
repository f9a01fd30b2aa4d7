"""Which models differ, by tests on their seeds: what `results/<table>-tests.json` is a list of.

Each record is one claim with its test; `holds` says whether the test shows it. Sentences in the docs name the records
that they rest on: `sentences.py`.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from . import statistics

Record = dict[str, Any]
LEVEL = 0.05
SUBJECT = "fast-weights"  # what the paper's claims are about
MARGINS = {"table1": 0.2, "table2": 0.2, "table3": 1.0}  # errors in % that differ by less are similar
MARGIN_OF_RETURNS = 0.1
THRESHOLDS = ("-0.5", "0", "0.5", "0.9")  # returns of agents


class Sample(NamedTuple):
    """What was measured from the seeds of one model.

    Args:
        group: table and recipe, such as "table1/tuned".
        model: as `style.MODELS` has it.
        size: its units; none where all have the same. What is compared has the same group and size.
        values: one for each seed.
    """

    group: str
    model: str
    size: str
    values: Sequence[float]

    @property
    def name(self) -> str:
        """Such as "lstm-50"."""
        return f"{self.model}-{self.size}" if self.size else self.model


def of(table: str, entries: Iterable[Mapping[str, Any]]) -> list[Record]:
    """The records for what a file of results has; none for one that has no models to compare.

    Args:
        table: the file's name without its suffix, such as "table1" or "catch".
    """
    entries = list(entries)
    if all({"model", "units", "recipe"} <= entry.keys() for entry in entries):
        return comparisons(errors(table, entries), "test error, %", margin=MARGINS.get(table))
    variants = [entry for entry in entries if entry.get("claim") == "variants"]
    if variants:
        samples = [Sample(f"{table}/variants", entry["variant"], "", _test_errors(entry)) for entry in variants]
        base = variants[0]["variant"]
        return comparisons(samples, "test error, %", margin=MARGINS["table1"], subject=base)
    if all({"core", "variant", "seeds"} <= entry.keys() for entry in entries):
        return agents(table, entries)
    return []


def errors(table: str, entries: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """The test errors of entries of a table; what is compared has the same recipe and size."""
    return [
        Sample(
            f"{table}/{entry['recipe']}",
            entry["model"],
            f"{entry['units']}",
            _test_errors(entry),
        )
        for entry in entries
    ]


def _test_errors(entry: Mapping[str, Any]) -> list[float]:
    return [seed["test_error"] for seed in entry["seeds"]]


def agents(table: str, entries: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The records of all measures of agents: return over all frames, at the end, and how soon it was where.

    Cores are compared that learned the same game in the same way; and each core with itself: by asynchronous workers
    and synchronously, and as selected and with each change. A threshold that was never reached counts as reached with
    the last frame, so that a difference of frames may be greater than it is said to be.
    """
    found = []
    measures = ["auc", "greedy_return", "sampled_return", *(f"frames_to_{threshold}" for threshold in THRESHOLDS)]
    for measure in measures:
        samples, of_core = [], []
        for entry in entries:
            values = [_measured(seed, measure, entry) for seed in entry["seeds"]]
            if None in values:
                continue
            group = f"{table}/{'-'.join(map(str, entry['variant']))}"
            way = _way(entry)
            samples.append(Sample(f"{group}/{way}" if way not in USUAL else group, entry["core"], "", values))
            of_core.append(Sample(f"{group}/{entry['core']}", way, "", values))
        higher, suffix = not measure.startswith("frames"), f"/{measure}"
        found += comparisons(samples, measure, higher=higher, suffix=suffix)
        for usual in USUAL:
            some = [sample for sample in of_core if any(s.model == usual and s.group == sample.group for s in of_core)]
            margin = MARGIN_OF_RETURNS if higher else None
            found += comparisons(
                some, measure, higher=higher, margin=margin, subject=usual, suffix=suffix, others=False
            )
    return found


USUAL = ("synchronous", "as-selected")


def _way(entry: Mapping[str, Any]) -> str:
    """How an agent learned, as part of a name: "inputs U(±1)" is "inputs-U-1"."""
    if "change" in entry:
        return re.sub(r"[^\w.]+", "-", entry["change"]).strip("-")
    return "synchronous" if entry.get("workers", 1) == 1 else "asynchronous"


def _measured(seed: Mapping[str, Any], measure: str, entry: Mapping[str, Any]) -> Any:
    """None if it was not measured."""
    if measure == "auc" and measure not in seed and "curve" in seed:
        return sum(seed["curve"]["return"]) / len(seed["curve"]["return"])  # points are at even distances
    if measure in seed and seed[measure] is None:
        return entry["frames"]
    return seed.get(measure)


def comparisons(
    samples: Iterable[Sample],
    measure: str,
    *,
    higher: bool = False,
    margin: float | None = None,
    subject: str = SUBJECT,
    suffix: str = "",
    others: bool = True,
) -> list[Record]:
    """A test of every two models of the same group and size.

    p is adjusted (Holm) in two families for each group and size: the subject against each of the others, which is
    what was asked, and the others among themselves.

    Args:
        measure: what was measured.
        higher: whether more of it is better.
        margin: within which two models are similar; None: similarity is not tested.
        suffix: of the records' names.
        others: compare them among themselves, too.

    >>> samples = [Sample("t", "fast-weights", "50", [0.0, 0.1, 0.0, 0.1, 0.2]),
    ...            Sample("t", "lstm", "50", [1.0, 1.5, 1.2, 1.1, 1.6])]
    >>> (record,) = comparisons(samples, "test error, %")
    >>> record["id"], record["claim"], round(record["p_adjusted"], 4), holds(record)
    ('t/fast-weights-50-lstm-50', 'better', 0.0079, True)
    """
    families: dict[tuple[str, str, bool], list[tuple[Sample, Sample]]] = defaultdict(list)
    for a, b in combinations(sorted(samples, key=lambda sample: sample.model != subject), 2):
        if (a.group, a.size) == (b.group, b.size) and (others or a.model == subject):
            families[a.group, a.size, a.model == subject].append((a, b))
    found = []
    for pairs in families.values():
        tests = [_difference(a, b, measure, higher) for a, b in pairs]
        if margin is not None:
            tests += [_similarity(a, b, measure, margin) for a, b in pairs]
        for kind in (tests[: len(pairs)], tests[len(pairs) :]):
            adjusted = statistics.holm([record["p"] for record in kind])
            for record, p in zip(kind, adjusted, strict=True):
                found.append(_in_order({**record, "id": record["id"] + suffix, "p_adjusted": p, "family": len(pairs)}))
    return found


def _difference(a: Sample, b: Sample, measure: str, higher: bool) -> Record:
    test = statistics.permutation(a.values, b.values)
    better = test.estimate > 0 if higher else test.estimate < 0
    claim = "equal" if sorted(a.values) == sorted(b.values) else "better" if better else "worse"
    return _record(a, b, claim, measure, test)


def _similarity(a: Sample, b: Sample, measure: str, margin: float) -> Record:
    return {**_record(a, b, "similar", measure, statistics.equivalent(a.values, b.values, margin)), "margin": margin}


def _record(a: Sample, b: Sample, claim: str, measure: str, test: statistics.Estimate) -> Record:
    facts = {"id": f"{a.group}/{a.name}-{b.name}", "claim": claim, "a": a.name, "b": b.name, "measure": measure}
    return {**facts, **test._asdict(), "n": list(test.n)}


def _in_order(record: Record) -> Record:
    names = ("id", "claim", "a", "b", "measure", "estimate", "low", "high", "margin", "p", "p_adjusted", "family")
    return {name: record[name] for name in (*names, "n", "method") if name in record}


def holds(record: Mapping[str, Any]) -> bool:
    """Whether the test shows what the record claims, at 5 %.

    Better and worse: p, adjusted, is below. Similar: so it is, and the interval lies inside the margin. Equal: nothing
    that was measured differs.
    """
    if record["claim"] == "equal":
        return bool(record["estimate"] == record["low"] == record["high"] == 0)
    shown = bool(record["p_adjusted"] < LEVEL)
    if record["claim"] == "similar":
        bounds = (record["low"], record["high"])
        return shown and None not in bounds and all(abs(bound) < record["margin"] for bound in bounds)
    return shown
