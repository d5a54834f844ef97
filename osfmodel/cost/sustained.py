"""Prices of a measured table for messages that follow each other, not for one on an idle network.

A message on an idle network may fit into a buffer (of a shaper, a socket or a NIC) and then seems cheaper per byte than
any number of them, back to back, can be. So with *top* for the sizes from a quarter of the largest on, at which no
buffer matters, a table's price is

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

from collections.abc import Sequence
from itertools import accumulate

from osfmodel.cost.shapes import TableCost, last_slope
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.entities.display import how_many, show_bytes
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
