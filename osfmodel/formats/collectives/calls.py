"""Collectives that the ranks of a job ran, one rank's time at a time -> prices by size, in bounded memory.

On each rank a collective lasts until the last rank has come. So of every call the rank that waited least counts, and
of every size the median of its calls. A job has communicators of several sizes, of which the largest are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from zlib import crc32

from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import DataError
from osfmodel.formats.source_text import Files, Hints, Point, Text, cluster_of
from osfmodel.formats.streams import HEAD, Pieces, named, opened, peeked

MOST_SIZES, MOST_CALLS, MOST_LAYOUTS, MOST_RANKS = 5_000, 128, 50, 100_000
"""Maximum numbers of sizes, of calls kept of each, of layouts that are named, and of ranks."""
LARGEST = 2**62
"""Maximum of a size, a time or a number of ranks."""


class CommunicatorShape(NamedTuple):
    """Ranks and nodes of a communicator; 0 nodes if not stated."""

    ranks: int
    nodes: int = 0


class RankCall(NamedTuple):
    """One rank's share in a collective: ``size`` in bytes as cost models count it, ``time`` in seconds.

    ``number`` tells the calls of one kind in a communicator apart, the same on every rank.
    """

    shape: CommunicatorShape
    communicator: str
    rank: int
    kind: str
    size: int
    time: float
    number: int


@dataclass(slots=True)
class CallTimes:
    """Times of the calls of one collective and size: of each call that of the rank which waited least.

    Beyond MOST_CALLS it keeps an even sample, chosen by a checksum, so that all ranks choose the same calls.
    """

    times: dict[tuple[str, int], float] = field(default_factory=dict)
    bar: int = 2**32

    def add(self, call: RankCall) -> None:
        """Count one rank's time."""
        key = call.communicator, call.number
        if self.bar < 2**32 and _lot(key) >= self.bar:
            return
        self.times[key] = min(call.time, self.times.get(key, call.time))
        while len(self.times) > MOST_CALLS:
            self.bar //= 2
            self.times = {key: time for key, time in self.times.items() if _lot(key) < self.bar}


def _lot(key: tuple[str, int]) -> int:
    """A number below 2**32, evenly spread, that is the same in every file."""
    return crc32(f"{key[0]}/{key[1]}".encode("utf-8", "replace"))


@dataclass(slots=True)
class JobCalls:
    """All that is kept of a job's files: calls of the largest communicators, and counts of the rest.

    ``untimed`` and ``point_to_point`` count collectives without a duration, and sends and receives.
    """

    shape: CommunicatorShape = CommunicatorShape(0)
    calls: dict[tuple[str, int], CallTimes] = field(default_factory=dict)
    kept: int = 0
    ranks: set[tuple[str, int]] = field(default_factory=set)
    smaller: Counter[CommunicatorShape] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    untimed: int = 0
    point_to_point: int = 0

    def add(self, call: RankCall) -> None:
        """Keep a call of the largest communicators so far, those of most nodes among equals; count any other."""
        if call.shape > self.shape:
            self._leave(self.shape, self.kept)
            self.shape, self.kept = call.shape, 0
            self.calls.clear()
            self.ranks.clear()
        if call.shape < self.shape:
            self._leave(call.shape, 1)
            return
        self.kept += 1
        if len(self.ranks) < MOST_RANKS:
            self.ranks.add((call.communicator, call.rank))
        times = self.calls.get((call.kind, call.size))
        if times is None:
            if len(self.calls) >= MOST_SIZES:
                raise DataError(f"has more than {MOST_SIZES:,} sizes of collectives: give the files of a shorter run")
            times = self.calls[call.kind, call.size] = CallTimes()
        times.add(call)

    def leave_out(self, name: str) -> None:
        """Count a collective that is not read."""
        self.others[name[:40] if len(self.others) < MOST_LAYOUTS else "other"] += 1

    def _leave(self, shape: CommunicatorShape, count: int) -> None:
        if count:
            self.smaller[shape if len(self.smaller) < MOST_LAYOUTS else CommunicatorShape(0)] += count


class Recorder(NamedTuple):
    """A tool that records collectives, one file for each rank: its name, and what its files are.

    ``label`` is such a file, ``remedy`` says how durations are recorded, ``wanted`` which collectives are read.
    """

    name: str
    label: str
    sniff: Callable[[str], bool]
    endings: tuple[str, ...]
    remedy: str
    wanted: str = "all-reduce, all-gather and reduce-scatter"


class RankFile(NamedTuple):
    """The file of one rank, the ``number``-th of the job: its name, its bytes, and who is told of oddities in it."""

    number: int
    name: str
    pieces: Pieces
    tell: Callable[[str], None]


def read_calls(
    files: Files,
    hints: Hints,
    recorder: Recorder,
    found: JobCalls,
    add: Callable[[RankFile], None],
    remarks: Callable[[Callable[[str], None]], None] = lambda tell: None,
) -> Cluster:
    """A tabulated cluster from the files of a job's ranks, read as streams: ``add`` puts a file's calls into ``found``.

    Of each call it takes the time of the rank that waited least, of each size the median of its calls. What was left
    out is told, what ``remarks`` tells first. Raises DataError, with the file, for one that is damaged, and if no
    collective has a duration.
    """
    start, count = b"", 0
    for number, (name, content) in enumerate(opened(files, recorder.sniff, recorder.endings, recorder.label)):
        with named(files, name):
            head, pieces = peeked(content, HEAD)
            add(RankFile(number, name, pieces, files.naming(name).tell))
        start, count = start or head[:HEAD], number + 1
    text = files.text(count, start.decode("utf-8", "replace"))
    remarks(text.tell)
    with named(files, str(files.paths[0])):
        return _cluster_of_calls(text, found, hints, recorder)


def members_in(groups: Mapping[str, tuple[str, int]], group: str, hints: Hints, label: str = "") -> tuple[str, int]:
    """A name for a group's communicator and the number of its ranks: ``groups`` has (members, their number) by name.

    ``label`` is its name for people, if another. Raises DataError if neither file nor user says how many ranks it has.
    """
    members, count = groups.get(group, ("", hints.workers or 0))
    if not count:
        raise DataError(f"does not say how many ranks group {(label or group)[:40]!a} has: give --workers N")
    return f"{group} {members}", count


def quoted(value: object) -> str:
    """A value of a file for a message, cut; of a list or a dictionary only the type, as it may be nested deeply."""
    return repr(value)[:40] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """``fields[name]``. Raises DataError if it is not a whole number of 0 or more."""
    value = fields.get(name)
    if not isinstance(value, int) or not 0 <= value < LARGEST:
        raise DataError(f"has {name} {quoted(value)}, not a whole number of 0 or more")
    return value


def time_in(fields: Mapping[str, Any], name: str) -> float:
    """``fields[name]``, in the unit of the file. Raises DataError if it is not a time of 0 or more."""
    value = fields.get(name)
    if not isinstance(value, int | float) or not 0 <= value < LARGEST:
        raise DataError(f"has {name} {quoted(value)}, not a time")
    return value


def _cluster_of_calls(text: Text, found: JobCalls, hints: Hints, recorder: Recorder) -> Cluster:
    """A tabulated cluster of a job's calls; ``text`` stands for their files.

    Tells what was left out. Raises DataError if nothing was timed, and if --workers contradicts the files.
    """
    if found.untimed and not found.calls:
        raise DataError(f"has no durations of its {how_many(found.untimed, 'collective')}: {recorder.remedy}")
    _tell(text, found, recorder)
    if not found.calls:
        raise DataError(f"has no times of {', '.join(COLLECTIVES)} between two ranks or more: {recorder.remedy}")
    shape = found.shape
    if hints.workers not in (None, shape.ranks):
        raise DataError(f"has {shape.ranks} ranks, --workers {hints.workers}: leave --workers out")
    points = [
        Point(shape.ranks, size, time, 0, kind)
        for (kind, size), calls in sorted(found.calls.items())
        for _, time in sorted(calls.times.items())
    ]
    counts = sorted(len(calls.times) for calls in found.calls.values())
    spread = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    conditions = (
        f"{recorder.name} in a job; {shape.ranks} ranks on {shape.nodes or 'an unknown number of'} nodes; median of "
        f"{spread} calls of a size, each as the rank that waited least saw it"
    )
    per_node = hints.gpus_per_node or (-(-shape.ranks // shape.nodes) if shape.nodes else None)
    return cluster_of(text, points, replace(hints, gpus_per_node=per_node), conditions)


def _tell(text: Text, found: JobCalls, recorder: Recorder) -> None:
    """Remarks on what was left out, and on times that include waiting."""
    if found.untimed:
        text.tell(f"left out: {how_many(found.untimed, 'collective')} without a duration")
    if found.point_to_point:
        text.tell(f"sends and receives are left out: {found.point_to_point}")
    if found.smaller:
        count = sum(found.smaller.values())
        sizes = ", ".join(str(ranks) for ranks in sorted({shape.ranks for shape in found.smaller if shape.ranks}))
        on = f" on {found.shape.nodes} nodes" if found.shape.nodes else ""
        read = f"read are those of {found.shape.ranks} ranks{on}"
        text.tell(f"{count:,} calls of other communicators (of {sizes} ranks) are left out: {read}")
    if found.others:
        names = ", ".join(f"{count:,} {name!a}" for name, count in sorted(found.others.items())[:5])
        text.tell(f"left out (only {recorder.wanted} are read): {names}")
    missing = len({communicator for communicator, _ in found.ranks}) * found.shape.ranks - len(found.ranks)
    if missing > 0:
        seen = f"only {len(found.ranks)} of {len(found.ranks) + missing} ranks found"
        others = "the other" if missing == 1 else "the others"
        text.tell(f"{seen}, so times may include waiting for {others}: give the files of all ranks")
