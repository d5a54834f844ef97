"""Cost models with an entry for each worker count: a line, the minimum of a few lines, or a measured table.

Entries are those of a cluster (AlphaBeta, Pieces, Table): all have ``workers`` and ``collective``.

hockney:   time = alpha + beta * bytes, one published or fitted line. R. W. Hockney, "The communication challenge for
           MPP", Parallel Computing 20(3), 1994; as used for all-reduce in MG-WFBP (TPDS'21, section 3.2)
piecewise: min_k latency_k + seconds_per_byte_k * bytes, the shape of a library's choice among algorithms and protocols
           (NCCL: LL, LL128, Simple), as a fit to a measured table. It never falls with size nor rises per byte, so the
           fast solver serves it
tabulated: a measured size -> time table: straight lines between its points, nothing smoothed, and no message cheaper
           per byte than large ones, as follows

A measured table prices messages that follow each other, not one on an idle network. A message on an idle network may
fit into a buffer (of a shaper, a socket or a NIC) and then seems cheaper per byte than any number of them, back to
back, can be. So with *top* for the sizes from a quarter of the largest on, at which no buffer matters, a table's price
is

    T(s) = max(measured(s), s * min over top of measured(m) / m)

measured(s) is the time of one message on an idle network. If messages back to back (a train) were measured, it is the
time per message of a train where the library runs one collective at a time, since a busy stream hides part of the
start-up, and the longer of both where it runs several. Several in flight share the transfer T - a, with a the start-up,
measured or else the least time up to that size; ``TableCost.sustained`` is the least (T(m) - a(m)) / m of the top.
Sizes that are dearer per byte stay as they are: they may belong to another protocol. So do cheaper ones that do not
look like a buffer. With a buffer of B bytes T(s) = (s - B) / rate, so from any size to the next the time grows no
faster than in the top. Where it grows much faster, before the price per byte is that of large messages, the library
changes its algorithm, and messages below are cheap indeed.

The *cheapest* of the top sizes counts, since the largest is often measured worst. By the largest alone, half of the
8-worker table of ``k80-10gbe-osu``, which ends at 1 MiB, would be raised by up to 14 %, and 3.9 MiB in
``k80-10gbe-log`` by 22 %. With a quarter three all-reduce tables of real machines are raised at some size, by at most 6
(``azure-a100-hdr``), 10 (``a40-pairs``) and 16 % (``rtx-6000d-nics``) (tests/cost/test_sustained.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from osfmodel.cost.fitting import Fit, Sample, fit_minimum, fit_nonnegative, medians
from osfmodel.cost.model import CostModel
from osfmodel.cost.shapes import AffineCost, Cost, TableCost, last_slope
from osfmodel.entities.cluster import AlphaBeta, Cluster, Pieces, Table
from osfmodel.entities.display import how_many, show_bytes
from osfmodel.entities.errors import CostError
from osfmodel.entities.rounding import just_below
from osfmodel.entities.units import show_rate

TOP = 4
"""The largest size over the smallest of the sizes whose rate is taken as sustained."""
CLIFF = 0.5
"""A step to the next size is a change of algorithm if it exceeds what a buffer explains by more than this fraction of
the size's time at the sustained rate. Where bundled tables are cheaper than large messages it is 0.12 at most."""
TOLD = 0.05
"""Fraction by which a message must be cheaper than at the sustained rate to be reported: repeats differ by less."""


def sustained(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Seconds per byte of the cheapest of the sizes from a quarter of the largest on."""
    return min(time / size for size, time in zip(sizes, times, strict=True) if TOP * size >= sizes[-1])


def cost_of_table(table: Table, in_flight: int = 1) -> TableCost:
    """The prices of a table in a cluster that runs ``in_flight`` collectives of a queue at once."""
    times = _busy(table, in_flight)
    times = _raised(table.sizes, times)
    startups = table.startups or tuple(accumulate(times, min))
    transfers = [max(time - startup, 0.0) for time, startup in zip(times, startups, strict=True)]
    return TableCost(
        table.sizes,
        times,
        measured_range=(table.sizes[0], table.sizes[-1]),
        sustained=sustained(table.sizes, transfers),
    )


def _raised(sizes: Sequence[int], times: Sequence[float]) -> tuple[float, ...]:
    """The times, at least those of as many bytes of large messages, but below a change of algorithm."""
    rate = sustained(sizes, times)
    slope = max(rate, last_slope(sizes, times))
    raised = list(times)
    kept = False
    for i in reversed(range(len(sizes) - 1)):
        floor = rate * sizes[i]
        cheaper = times[i] < just_below(floor)
        beyond = times[i + 1] - times[i] - slope * (sizes[i + 1] - sizes[i])
        kept = cheaper and (kept or beyond > CLIFF * floor)
        if cheaper and not kept:
            raised[i] = floor
    return tuple(raised)


def _busy(table: Table, in_flight: int) -> tuple[float, ...]:
    """Seconds of each message where others go before it, as far as trains were measured."""
    trains = table.trains
    known = trains if in_flight == 1 else tuple(map(max, trains, table.times))
    return known + table.times[len(trains) :]


def cautions(cluster: Cluster, workers: int | None = None) -> tuple[str, ...]:
    """A sentence for each table, of ``workers`` workers or of all, that is cheaper per byte at some middle size.

    Sizes at which trains were measured are known, not doubtful, and not told.
    """
    chosen = [table for table in cluster.tables if workers in (None, table.workers)]
    return tuple(said for table in chosen if (said := _caution(table, cluster.in_flight)))


def _caution(table: Table, in_flight: int) -> str:
    times = cost_of_table(table, in_flight).times
    rows = list(zip(table.sizes, table.times, times, strict=True))[len(table.trains) :]
    raised = [(planned / alone, size, alone, planned) for size, alone, planned in rows if alone]
    most, size, alone, planned = max(raised, default=(1.0, 0, 1.0, 1.0))
    if most <= 1 + TOLD:
        return ""
    return (
        f"{table.collective} between {how_many(table.workers, 'worker')}: {show_bytes(size)} measured alone run at "
        f"{show_rate(size / alone)}, faster than large messages ({show_rate(size / planned)}): priced like those"
    )


class PerCount(NamedTuple):
    """A cost model with an entry of its own for each worker count.

    field: field of Cluster that holds the entries
    kind:  word for an entry in messages
    price: entry, its cluster -> Cost
    one:   (workers, samples) -> the entry fitted to them, and the relative residual of each sample
    has:   the words before the worker counts that are known
    """

    field: str
    kind: str
    price: Callable[[Any, Cluster], Cost]
    one: Callable[[int, Sequence[Sample]], tuple[Any, Sequence[float]]]
    has: str = "has it for"

    def cost(self, cluster: Cluster, workers: int, collective: str) -> Cost:
        """The cost for that worker count. Raises CostError if there is none, naming those that exist."""
        entries = getattr(cluster, self.field)
        for one in entries:
            if (one.workers, one.collective) == (workers, collective):
                return self.price(one, cluster)
        known = sorted(one.workers for one in entries if one.collective == collective)
        other = "osf bench measures others, and words such as ring:50us,10Gbps serve any"
        have = f"{self.has} {', '.join(map(str, known))}; {other}" if known else f"has no such {self.kind}"
        raise CostError(f"no {collective} {self.kind} for {workers} workers: cluster {cluster.name!r} {have}")

    def counts(self, cluster: Cluster) -> tuple[int, ...]:
        """The worker counts that have an all-reduce entry, increasing."""
        return tuple(sorted(one.workers for one in getattr(cluster, self.field) if one.collective == "all_reduce"))

    def fit(self, samples: Sequence[Sample], gpus_per_node: int = 1) -> Fit:
        """A separate fit for each worker count. ``parameters`` = {field: the entries}.

        Raises CostError without samples, and if a worker count has too few.
        """
        if not samples:
            raise CostError("there are no samples to fit")
        entries = []
        residuals: dict[int, float] = {}
        for workers in sorted({sample.workers for sample in samples}):
            chosen = [i for i, sample in enumerate(samples) if sample.workers == workers]
            found, errors = self.one(workers, [samples[i] for i in chosen])
            entries.append(found)
            residuals.update(zip(chosen, errors, strict=True))
        return Fit.of(samples, {self.field: tuple(entries)}, [residuals[i] for i in range(len(samples))])


def _line(workers: int, samples: Sequence[Sample]) -> tuple[AlphaBeta, Sequence[float]]:
    """A non-negative line by relative error, robust to outliers."""
    (latency, per_byte), residuals = fit_nonnegative(samples, lambda _, size: (1.0, size))
    return AlphaBeta(workers, latency, per_byte), residuals


def _lines(workers: int, samples: Sequence[Sample]) -> tuple[Pieces, Sequence[float]]:
    """Up to four lines, as many as :mod:`~osfmodel.cost.fitting` finds justified."""
    minimum = fit_minimum(samples, lambda _, size: (1.0, size))
    latencies, per_byte = zip(*minimum.pieces, strict=True)
    return Pieces(workers, latencies, per_byte), minimum.residuals


def _table(workers: int, samples: Sequence[Sample]) -> tuple[Table, Sequence[float]]:
    """The median time of each size; residuals are the spread of repeated samples around it."""
    (points,) = medians(samples).values()
    if len(points) < 2:
        raise CostError(f"{workers} workers were measured at one size only: a table needs two or more")
    table = Table(workers, tuple(points), tuple(points.values()))
    return table, [points[sample.size] / sample.time - 1 for sample in samples]


def startups(cluster: Cluster, workers: int) -> dict[str, Cost]:
    """Start-ups measured beside the tables, by collective."""
    return {
        table.collective: TableCost(table.sizes, table.startups, 0.0)
        for table in cluster.tables
        if table.startups and table.workers == workers
    }


def alone(cluster: Cluster, workers: int) -> dict[str, Cost]:
    """Prices of one message on an idle network, as measured, by collective."""
    return {
        table.collective: TableCost(table.sizes, table.times, measured_range=(table.sizes[0], table.sizes[-1]))
        for table in cluster.tables
        if table.workers == workers
    }


OF_LINES = "latency is the constant of each fitted line, and bandwidth its slope"
OF_TABLES = "latency is the measured time of the smallest messages, and bandwidth what larger ones take beyond it"
_LINE = PerCount("fits", "fit", lambda line, _: AffineCost(((line.latency, line.seconds_per_byte),)), _line)
_LINES = PerCount(
    "pieces", "pieces", lambda row, _: AffineCost(tuple(zip(row.latencies, row.seconds_per_byte, strict=True))), _lines
)
_TABLES = PerCount(
    "tables",
    "table",
    lambda table, cluster: cost_of_table(table, cluster.in_flight),
    _table,
    "was measured with",
)
HOCKNEY = CostModel(
    _LINE.cost, _LINE.fit, "one published or fitted line per worker count", _LINE.counts, link_note=OF_LINES
)
PIECEWISE = CostModel(
    _LINES.cost, _LINES.fit, "the minimum of a few fitted lines per worker count", _LINES.counts, link_note=OF_LINES
)
TABULATED = CostModel(
    _TABLES.cost,
    _TABLES.fit,
    "a measured size -> time table per worker count",
    _TABLES.counts,
    link_note=OF_TABLES,
    startups=startups,
    alone=alone,
    doubts=cautions,
)
