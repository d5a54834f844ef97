"""Make bands.json, the error bands that predictions carry, from the ledger.

    python profiles/make_bands.py [OUTPUT_FILE]

Also prints how well bands made from one part of the runs cover the other: every second *setting* held out (the runs of
one setting share fitted numbers, so that none may be on both sides), and each source held out as a whole, over all rows
(pooled), on average over the sources, and by source; the last two also with other edges and another least number of
runs. Rows that are ratios of times (``papers``) have no regime, and take no part, nor do sparse plans, which carry no
band.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from osfmodel.engine import bands
from osfmodel.engine.bands import Error, band_for, bands_document, bands_of
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.rounding import plain_sum
from osfmodel.ledger.check import check

Setting: TypeAlias = tuple[str, ...]
"""Source, workload, cluster, workers and, where stated, file and placement: what recipes fit numbers to."""
VARIANTS: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("as they are", {}),
    ("4 runs are enough", {"ENOUGH": 4}),
    ("16 runs are enough", {"ENOUGH": 16}),
    ("edges of communication halved", {"RATIO_EDGES": tuple(edge / 2 for edge in bands.RATIO_EDGES)}),
    ("edges of communication doubled", {"RATIO_EDGES": tuple(edge * 2 for edge in bands.RATIO_EDGES)}),
    ("edges of bandwidth halved", {"BANDWIDTH_EDGES": tuple(edge / 2 for edge in bands.BANDWIDTH_EDGES)}),
    ("edges of bandwidth doubled", {"BANDWIDTH_EDGES": tuple(edge * 2 for edge in bands.BANDWIDTH_EDGES)}),
)
"""Other grids. The shipped one was not chosen by them."""


def settings() -> dict[Setting, list[Error]]:
    """Every run of the ledger that is predicted and on which nothing was fitted, and that is a time, by setting."""
    found: dict[Setting, list[Error]] = {}
    for one in check():
        if all(row.regime is None for row in one.rows):
            continue  # ratios, which are more or fewer than runs
        for run, row in zip(load_measurements(one.source), one.rows, strict=True):
            if row.error is not None and row.counts and row.regime is not None and not sparse(run):
                found.setdefault(setting_of(one.source, run), []).append(Error(one.source, row.regime, row.error))
    return found


def sparse(run: Measurement) -> bool:
    """Whether its plan sent some buckets sparsely: their density follows an ``@`` in ``entities.files.notation``."""
    return "@" in dict(run.conditions).get("sent", "")


def setting_of(source: str, run: Measurement) -> Setting:
    """The setting to which ``run`` belongs."""
    stated = dict(run.conditions)
    where = (stated.get(name, "") for name in ("file", "placement"))
    return (source, run.workload, run.cluster, str(run.workers), *where)


def flat(found: Iterable[Sequence[Error]]) -> list[Error]:
    """The rows of some settings."""
    return list(chain.from_iterable(found))


def coverage(made_from: Sequence[Error], held_out: Sequence[Error]) -> float:
    """Part of ``held_out`` that lies within the bands of ``made_from``, among those that have one."""
    bands = bands_of(made_from)
    judged = [(band_for(row.regime, bands), row.error) for row in held_out]
    inside = [abs(error) <= band.half_width for band, error in judged if band is not None]
    return sum(inside) / len(inside)


def by_halves(found: Mapping[Setting, Sequence[Error]]) -> float:
    """Coverage of every second setting by the bands of the others, both ways, over all rows."""
    groups = list(found.values())
    halves = flat(groups[::2]), flat(groups[1::2])
    parts = [(coverage(*pair), len(pair[1])) for pair in (halves, halves[::-1])]
    return plain_sum(part * count for part, count in parts) / sum(count for _, count in parts)


def by_source(errors: Sequence[Error]) -> dict[str, float]:
    """Coverage of each source by the bands of all the others."""
    sources = dict.fromkeys(row.source for row in errors)
    return {
        name: coverage([row for row in errors if row.source != name], [row for row in errors if row.source == name])
        for name in sources
    }


def pooled(errors: Sequence[Error], parts: Mapping[str, float]) -> float:
    """Coverage of whole sources held out, each row weighing the same."""
    return plain_sum(parts[row.source] for row in errors) / len(errors)


def mean(parts: Mapping[str, float]) -> float:
    """The same, each source weighing the same."""
    return plain_sum(parts.values()) / len(parts)


@contextmanager
def grid(**values: object) -> Iterator[None]:
    """Bands over another grid."""
    before = {name: getattr(bands, name) for name in values}
    for name, value in values.items():
        setattr(bands, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(bands, name, value)


def report(found: Mapping[Setting, Sequence[Error]]) -> Iterator[str]:
    """Coverage as Markdown tables."""
    errors = flat(found.values())
    yield f"every second setting held out: {by_halves(found):.1%} of {len(errors)} rows within the bands of the others"
    yield "\n| source held out | rows | within the bands of the others |\n|---|---|---|"
    for name, part in by_source(errors).items():
        yield f"| {name} | {sum(row.source == name for row in errors)} | {part:.1%} |"
    yield "\n| sources held out, with | pooled | mean of the sources | worst source |\n|---|---|---|---|"
    for what, values in VARIANTS:
        with grid(**values):
            parts = by_source(errors)
        yield f"| {what} | {pooled(errors, parts):.1%} | {mean(parts):.1%} | {min(parts.values()):.1%} |"


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "bands.json"
    found = settings()
    profiles.write_text(output, documents.encode(bands_document(bands_of(flat(found.values())))))
    print("\n".join(report(found)))


if __name__ == "__main__":
    main()
