"""The collective of an nccl-tests run: from its program's name, else its columns; checked by its bandwidths.

nccl-tests prints two bandwidths, bytes over time (algbw) and the same scaled to what a link carries (busbw). Their
ratio is a factor of the collective and the worker count n (nccl-tests, doc/PERFORMANCE.md): 2 (n-1) / n for all-reduce,
(n-1) / n for reduce-scatter, all-gather and all-to-all, 1 for send-receive, reduce and broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from osfmodel.entities.cluster import COLLECTIVES
from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Hints, Text

PARTS = ("reduce_scatter", "all_gather", "alltoall", "gather", "scatter", "hypercube")
WHOLE = ("sendrecv", "reduce", "broadcast")
NAMES = ("all_reduce", *PARTS, *WHOLE)
PROGRAM = re.compile(rf"(?<![A-Za-z0-9_])({'|'.join(NAMES)})_perf")
FLAG = f"give --collective {'|'.join(COLLECTIVES)}"
ROUNDING = 0.005
"""Half of the last digit that nccl-tests prints of a bandwidth, in GB/s; also the relative error that is accepted."""


class NamedCollective(NamedTuple):
    """Evidence of a run for its collective.

    stated:     the name that nccl-tests itself prints; "" if it prints none
    mentioned:  the last name on a command line before the run; "" if there is none
    redop:      the reduction, "none" for collectives without one
    root:       the column root, -1 for a collective without one; "" if there is no such column
    bandwidths: (algbw, busbw) in GB/s
    place:      where it was read, as in "line 7"
    """

    stated: str
    mentioned: str
    redop: str
    root: str
    bandwidths: Sequence[tuple[float, float]]
    place: str


def collective_of(text: Text, seen: NamedCollective, workers: int, hints: Hints) -> str:
    """The collective, one of COLLECTIVES. Raises DataError for others, for contradictions, and in doubt."""
    if seen.stated and hints.collective not in (None, seen.stated):
        raise DataError(f"{seen.place}: says {seen.stated}, --collective {hints.collective}: leave --collective out")
    named = seen.stated or hints.collective or seen.mentioned
    if not named:
        return _guessed(seen, workers)
    _require_read(seen, [named])
    if not _agrees(seen, named, workers):
        wrong = (
            f"busbw/algbw is {_ratio(seen):.3g}, but {named} with {workers} workers has {factor(named, workers):.3g}"
        )
        if hints.collective is None:
            raise DataError(f"{seen.place}: {wrong}: another collective or worker count; if it is right, {FLAG}")
        text.tell(f"{seen.place}: {wrong}: taken as {named}, as told")
    return named


def factor(name: str, workers: int) -> float:
    """The ratio busbw / algbw of a collective."""
    part = (workers - 1) / workers
    return 2 * part if name == "all_reduce" else part if name in PARTS else 1.0


def _guessed(seen: NamedCollective, workers: int) -> str:
    """The only collective that columns and bandwidths allow."""
    likely = [name for name in _by_columns(seen) if _agrees(seen, name, workers)]
    _require_read(seen, likely)
    if len(likely) != 1:
        known = f"which may be {' or '.join(likely)}" if likely else f"and busbw/algbw, {_ratio(seen):.3g}, fits none"
        raise DataError(f"{seen.place}: the file does not name the collective, {known}: {FLAG}")
    return likely[0]


def _by_columns(seen: NamedCollective) -> Sequence[str]:
    if seen.root.isdigit():
        return ("broadcast", "gather", "scatter") if seen.redop == "none" else ("reduce",)
    if seen.redop == "none":
        return ("all_gather", "alltoall", "hypercube")
    # Send-receive prints a reduction too; it is younger than the column "root".
    return ("all_reduce", "reduce_scatter", "sendrecv") if seen.root else ("all_reduce", "reduce_scatter")


def _require_read(seen: NamedCollective, names: Sequence[str]) -> None:
    """Raise DataError if none of ``names`` is a collective that carries gradients."""
    if names and not set(names) & set(COLLECTIVES):
        raise DataError(f"{seen.place}: is a test of {' or '.join(names)}; read are only {', '.join(COLLECTIVES)}")


def _largest(seen: NamedCollective) -> tuple[float, float]:
    """The most precise bandwidths: with two decimals printed, those are the largest."""
    return max(seen.bandwidths, default=(0.0, 0.0))


def _ratio(seen: NamedCollective) -> float:
    alg, bus = _largest(seen)
    return bus / alg if alg else float("nan")


def _agrees(seen: NamedCollective, name: str, workers: int) -> bool:
    """Whether the bandwidths may be those of ``name`` before rounding; True without bandwidths."""
    alg, bus = _largest(seen)
    expected = factor(name, workers)
    return abs(bus - expected * alg) <= ROUNDING * (1 + expected) * (1 + alg)
