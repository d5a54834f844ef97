"""Make bands.json, the error bands that predictions carry, from the ledger.

    python profiles/make_bands.py [OUTPUT_FILE]

Also prints how well bands made from one part of the runs cover the other: every second run held out, and each source
held out as a whole.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from osfmodel import documents, profiles
from osfmodel.bands import Error, band_for, bands_document, bands_of
from osfmodel.check import check


def ledger_errors() -> list[Error]:
    """Every run of the ledger that is predicted and on which nothing was fitted, and that is a time."""
    return [
        Error(one.source, row.regime, row.error)
        for one in check()
        for row in one.rows
        if row.error is not None and not row.fitted and row.regime is not None
    ]


def coverage(made_from: Sequence[Error], held_out: Sequence[Error]) -> float:
    """Which part of ``held_out`` lies within the bands of ``made_from``, among those that have one."""
    bands = bands_of(made_from)
    judged = [(band_for(row.regime, bands), row.error) for row in held_out]
    inside = [abs(error) <= band.half_width for band, error in judged if band is not None]
    return sum(inside) / len(inside)


def by_halves(errors: Sequence[Error]) -> float:
    """Coverage of every second run by the bands of the others, both ways."""
    return (coverage(errors[::2], errors[1::2]) + coverage(errors[1::2], errors[::2])) / 2


def by_source(errors: Sequence[Error]) -> dict[str, float]:
    """Coverage of each source by the bands of all the others."""
    sources = dict.fromkeys(row.source for row in errors)
    return {
        name: coverage([row for row in errors if row.source != name], [row for row in errors if row.source == name])
        for name in sources
    }


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "bands.json"
    errors = ledger_errors()
    profiles.write_text(output, documents.encode(bands_document(bands_of(errors))))
    print(f"every second run held out: {by_halves(errors):.1%} within the bands")
    for name, part in by_source(errors).items():
        print(f"{name} held out: {part:.1%} within the bands of the other sources")


if __name__ == "__main__":
    main()
