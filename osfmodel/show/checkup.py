"""The result of ``osf doctor``: the parts of the curve, every size, the probability of each fault, and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osfmodel.diagnosis.doctor import Checkup, ClassCheck, Hypothesis, SizeCheck
from osfmodel.diagnosis.doctor.curves import PercentileRange
from osfmodel.entities.display import how_many, listed, show_bus_rate, show_bytes, show_time
from osfmodel.show.document import Result
from osfmodel.show.table import Column, column, csv_row, json_row
from osfmodel.show.terminal import ENDS, Console, print_fitting, show_notes, show_title, table_of

SLOWEST = "slowest"
"""Heading of the slowest repeats, which some files have."""


def ratio_text(ratio: float) -> str:
    """Measured / priced: ``1.3x``."""
    return f"{ratio:.2f}x"


def place_text(place: PercentileRange | None) -> str:
    """A place among peers: ``20..40 (4 peers)``."""
    return (
        "no peers"
        if place is None
        else f"{100 * place.low:.0f}..{100 * place.high:.0f} ({how_many(place.peers, 'peer')})"
    )


PLACE: tuple[Column[Any], ...] = (
    column("percentile_low", None, lambda row: row.place and 100 * row.place.low),
    column("percentile_high", None, lambda row: row.place and 100 * row.place.high),
    column("peers", None, lambda row: 0 if row.place is None else row.place.peers),
    Column(None, "percentile", lambda row: None, lambda row: place_text(row.place)),
)
"""Columns of the place of a part or a size among peers."""
PARTS: tuple[Column[ClassCheck], ...] = (
    column("kind", "kind", lambda row: row.kind_words),
    column("part", "part of the curve", lambda row: row.part),
    column("ratio", "measured / expected", lambda row: row.ratio, ratio_text),
    *PLACE,
)
"""Columns of a part of the curve."""
SIZES: tuple[Column[SizeCheck], ...] = (
    column("file", None, lambda row: row.label),
    column("collective", None, lambda row: row.collective),
    column("workers", None, lambda row: row.workers),
    column("nodes", None, lambda row: row.nodes),
    column("bytes", "size", lambda row: row.size, show_bytes),
    column("time_s", "measured", lambda row: row.time, show_time),
    column("slowest_s", SLOWEST, lambda row: row.slowest, show_time),
    column("expected_s", "expected", lambda row: row.price, show_time),
    column("bus_bandwidth_bytes_per_s", "bus bandwidth", lambda row: row.bus_bandwidth, show_bus_rate),
    column("ratio", "ratio", lambda row: row.ratio, ratio_text),
    column("assumed", None, lambda row: row.way or None),
    *PLACE,
)
"""Columns of a measured size."""
HYPOTHESES: tuple[Column[Hypothesis], ...] = (
    column("fault", "fault", lambda row: row.name),
    column("probability", "probability", lambda row: row.probability, "{:.0%}".format),
    column("likeliest_form", None, lambda row: row.words),
    column("meaning", "meaning", lambda row: row.summary),
)
"""Columns of a fault and its probability."""


def shown_sizes(one: Checkup) -> tuple[str, list[SizeCheck]]:
    """A title, and the sizes of the file and worker count with the most workers."""
    most = max(one.sizes, key=lambda row: row.workers)
    rows = [row for row in one.sizes if (row.label, row.workers) == (most.label, most.workers)]
    where = f"{how_many(most.workers, 'worker')} on {how_many(most.nodes, 'node')}"
    return f"{most.label}: {most.collective} between {where}", rows


def assumed(rows: Sequence[SizeCheck], against: str) -> str:
    """The algorithm and protocol of NCCL behind each expected time, where the next one begins; "" of others' times."""
    changes = [row for before, row in zip([None, *rows], rows, strict=False) if before is None or before.way != row.way]
    ways = ", ".join(f"{row.way} from {show_bytes(row.size)}" for row in changes if row.way)
    return f"Expected of NCCL: {ways} (osf list algorithms {against})." if ways else ""


class Examined(Result):
    """The result of ``osf doctor``: verdict, place among other machines, probabilities of faults, and experiments."""

    def __init__(self, checkup: Checkup) -> None:
        self.checkup = checkup

    def content(self) -> dict[str, Any]:
        one = self.checkup
        return {
            "machine": one.name,
            "against": one.against,
            "cause": one.cause,
            "verdict": one.verdict,
            "hypotheses": [json_row(HYPOTHESES, hypothesis) for hypothesis in one.hypotheses],
            "ruled_out": list(one.ruled_out),
            "experiments": [{"fault": name, "experiment": words} for name, words in one.experiments],
            "parts": [json_row(PARTS, part) for part in one.classes],
            "sizes": [json_row(SIZES, size) for size in one.sizes],
            "notes": list(one.remarks),
        }

    def rows(self) -> list[dict[str, Any]]:
        return [{"machine": self.checkup.name, **csv_row(SIZES, size)} for size in self.checkup.sizes]

    def show(self, console: Console) -> None:
        one = self.checkup
        show_title(console, one.verdict)
        console.print()
        show_title(console, f"{one.name}, against {one.against}")
        console.print(table_of(PARTS, one.classes, (0, 1)))
        title, sizes = shown_sizes(one)
        console.print()
        show_title(console, title)
        columns = [one for one in SIZES if one.head != SLOWEST or any(row.slowest is not None for row in sizes)]
        print_fitting(console, columns, sizes, leave_out=("bus bandwidth", "expected"))
        if ways := assumed(sizes, one.against):
            console.print(ways, markup=False)
        if len(sizes) < len(one.sizes):
            console.print("Other tables: --format csv.", markup=False)
        console.print()
        console.print(table_of(HYPOTHESES, [s for s in one.hypotheses if s.probability >= LISTED], ENDS))
        if one.ruled_out:
            console.print(f"Ruled out: {listed(one.ruled_out)}.", markup=False)
        for name, words in one.experiments:
            console.print(f"To prove {name}: {words}.", markup=False)
        show_notes(console, one.remarks)


LISTED = 0.01
"""Minimum probability of a fault that is shown."""
