"""Helpers of all formats: the text of a file with its place, hints from the user, points of a table."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from osfmodel.entities.cluster import REPEATED, Cluster, Table
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files.documents import parse_json, parse_object
from osfmodel.entities.measurement import TELLING, Measurement, Source, checksum_of, imported
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload

LONGEST_QUOTE = 120
LARGEST_TABLE = 2_000_000
"""Maximum number of cells of a table: each takes some hundred bytes of memory while it is read."""
Noun = Workload | Cluster | Measurement | Plan
"""Data that a file may hold."""
LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n|\Z)")

if TYPE_CHECKING:
    from _csv import Reader as CsvReader


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints on data that a file may lack: name, workers, GPUs per node, batch size, collective, GPU.

    For traces that do not say how large collectives are: DDP's log of the same model, or its workload. ``steps`` are
    the first and the last that count.
    """

    name: str
    workers: int | None = None
    gpus_per_node: int | None = None
    batch_size: int | None = None
    collective: str | None = None
    gpu: str | None = None
    ddp_logging: Text | None = None
    model: Workload | None = None
    steps: tuple[int, int] | None = None


Progress = Callable[[int, int], None]


def silent(message: str) -> None:
    """Ignore a remark."""


@dataclass(frozen=True, slots=True)
class Text:
    """The content of ``file``; ``unit`` is what faults count, lines or entries; ``tell`` receives remarks."""

    file: str
    content: str
    unit: str = "line"
    tell: Callable[[str], None] = silent

    def source(self, conditions: str) -> Source:
        """The source of data that were read from it under these conditions."""
        start = self.content[:TELLING].encode("utf-8", "surrogatepass")
        return imported(self.file, conditions, checksum_of(start))

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number, line), from 1 on, one at a time: a large file is never held twice."""
        for number, match in enumerate(LINE.finditer(self.content), 1):
            if match.start() < len(self.content):
                yield number, match[0].rstrip("\r\n")

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """(line number, row) of a CSV file with a header. Raises DataError for rows of another length or too many."""
        reader = csv.reader(
            (line for _, line in self.lines()), delimiter=separator(self.content), skipinitialspace=True
        )
        try:
            yield from self._rows(reader)
        except csv.Error as error:
            raise self.fault(reader.line_num, str(error), "is not CSV") from None

    def _rows(self, reader: CsvReader) -> Iterator[tuple[int, dict[str, str]]]:
        header = [name.strip() for name in next(reader, [])]
        for count, row in enumerate(reader, 1):
            self.limit(reader.line_num, count * len(header))
            if row:
                if len(row) != len(header):
                    raise self.fault(
                        reader.line_num, ",".join(row), f"has {len(row)} columns, the header {len(header)}"
                    )
                yield reader.line_num, dict(zip(header, row, strict=True))

    def fault(self, line: int, text: str, what: str) -> DataError:
        """An error that names line and text; the reader of the file adds its path."""
        quoted = text.strip()[:LONGEST_QUOTE]
        return DataError(f"{self.unit} {line}: {what}: {quoted!r}")

    def remark(self, line: int, text: str, what: str) -> None:
        """Tell the user about an oddity in a line that does not prevent reading the file."""
        self.tell(str(self.fault(line, text, what)))

    def limit(self, line: int, cells: int) -> None:
        """Raise DataError if a table has more cells than any real one."""
        if cells > LARGEST_TABLE:
            raise DataError(f"{self.unit} {line}: the table has more than {LARGEST_TABLE:,} cells, the maximum")

    def column(self, line: int, row: Mapping[str, str], names: Sequence[str]) -> str:
        """The first of ``names`` that is a column of ``row``. Raises DataError if none is."""
        found = pick(row, *names)
        if found is None:
            raise self.fault(line, ", ".join(row), f"has no column {' or '.join(names[:3])}")
        return found

    def number(self, line: int, text: str) -> float:
        """``text`` as a finite number, zero or more. Raises DataError with the place."""
        try:
            value = float(text)
        except ValueError:
            raise self.fault(line, text, "is not a number") from None
        if not 0 <= value < float("inf"):
            raise self.fault(line, text, "is not a finite number, zero or more")
        return value

    def whole(self, line: int, text: str) -> int:
        """``text`` as a whole number, zero or more. Raises DataError with the place."""
        value = self.number(line, text)
        if value != int(value):
            raise self.fault(line, text, "is not a whole number")
        return int(value)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of one job: files, archives and folders of them by path, or texts in memory.

    ``tell`` receives remarks that are not errors; ``progress`` is called with the bytes read and the bytes in all.
    """

    paths: tuple[Path | Text, ...]
    tell: Callable[[str], None] = silent
    progress: Progress | None = None

    def text(self, count: int, start: str) -> Text:
        """A text that stands for ``count`` files, of which the first begins with ``start``; its remarks name them."""
        first = self.paths[0]
        title = first.file if isinstance(first, Text) else first.name
        name = title if count == 1 else f"{title} ({count} files)"
        return Text(name, start, tell=self.naming(name).tell)

    def naming(self, name: str) -> Files:
        """These files, whose remarks begin with ``name``; a text in memory is named by whoever gave it."""
        if isinstance(self.paths[0], Text):
            return self
        return replace(self, tell=lambda message: self.tell(f"{name}: {message}"))


def stem(file: str) -> str:
    """The default name for a file's content: the file's name, up to its first dot."""
    return "stdin" if file == "-" else Path(os.path.abspath(file)).name.strip(".").partition(".")[0] or "imported"


def shared_stem(files: Sequence[str]) -> str:
    """The default name for the files of a job: the common start of their names, without numbers that differ."""
    stems = [stem(file) for file in files]
    shared = os.path.commonprefix(stems)  # noqa: RUF071, as characters are meant
    if any(name[len(shared) :][:1].isdigit() for name in stems):
        shared = shared.rstrip("0123456789")
    return shared.strip("-_ ") or stems[0]


@dataclass(frozen=True, slots=True)
class Point:
    """One measured collective: seconds for ``size`` bytes between ``workers`` workers; ``line`` is its place."""

    workers: int
    size: int
    time: float
    line: int
    collective: str = "all_reduce"


def _table(workers: int, collective: str, times: Mapping[int, Sequence[float]]) -> Table:
    """The table of the medians of all times of each size, and the slowest of those repeated enough."""
    sizes = tuple(sorted(times))
    medians = tuple(median(times[size]) for size in sizes)
    slowest = tuple(max(times[size]) if len(times[size]) >= REPEATED else median(times[size]) for size in sizes)
    return Table(workers, sizes, medians, collective, slowest=slowest if slowest != medians else ())


def cluster_of(text: Text, points: Sequence[Point], hints: Hints, conditions: str, name: str = "") -> Cluster:
    """A tabulated cluster of these points, by the median of repeated sizes. Raises DataError if there are none."""
    found: dict[tuple[str, int], dict[int, list[float]]] = {}
    for point in points:
        if point.size > 0:
            if point.time == 0:
                raise DataError(f"{text.unit} {point.line}: {point.size} bytes in no time at all: is the unit right?")
            found.setdefault((point.collective, point.workers), {}).setdefault(point.size, []).append(point.time)
    for (collective, workers), times in sorted(found.items()):
        if len(times) == 1:
            text.tell(f"{collective} with {workers} workers has one size only and is left out")
    tables = [
        _table(workers, collective, times) for (collective, workers), times in sorted(found.items()) if len(times) > 1
    ]
    if not tables:
        raise DataError("holds no table of two sizes or more: measure several, as nccl-tests do with -b 1K -e 1G -f 2")
    largest = max(table.workers for table in tables)
    gpus_per_node = hints.gpus_per_node or 1
    return Cluster(
        name=name or hints.name,
        cost_model="tabulated",
        gpus_per_node=gpus_per_node,
        nodes=-(-largest // gpus_per_node),
        tables=tuple(tables),
        source=text.source(conditions),
    )


def require_workers(found: int | None, hints: Hints, place: str = "") -> int:
    """The number of workers, from the file or the user.

    Raises DataError, saying how to tell, where neither file nor user says so, and where they contradict each other;
    ``place`` is where the file says so.
    """
    where = f"{place}: " if place else ""
    if found and hints.workers and found != hints.workers:
        raise DataError(f"{where}says {found} workers, --workers {hints.workers}: leave --workers out")
    workers = hints.workers or found
    if not workers or workers < 2:
        raise DataError(f"{where}does not say how many workers there were (2 or more): give --workers N")
    return workers


def pick(columns: Mapping[str, object], *names: str) -> str | None:
    """The first of ``names`` that is a column."""
    return next((name for name in names if name in columns), None)


def separator(head: str) -> str:
    """The separator of a CSV file's columns: a comma or, if its header has none, a semicolon or a tab."""
    first = LINE.match(head.lstrip("\r\n"))
    return next((sign for sign in ",;\t" if first and sign in first[0]), ",")


def columns_of(head: str) -> dict[str, None]:
    """The names in the header of a CSV file."""
    return dict.fromkeys(name.strip() for name in head.partition("\n")[0].split(separator(head)))


Kind = TypeVar("Kind")


LARGEST_JSON = 8 * 2**20
"""Maximum characters of JSON. Parsed, each byte can take some twenty of memory."""


def parse(text: Text) -> dict[str, Any]:
    """The object in ``text``. Raises DataError if it is not a JSON object."""
    return parse_object(content(text))


def parse_list(text: Text) -> list[Any]:
    """The list in ``text``. Raises DataError if it is not a JSON list."""
    raw = parse_json(content(text))
    if not isinstance(raw, list):
        raise DataError(f"holds a JSON {type(raw).__name__}, but a list [...] is needed")
    return raw


def content(text: Text) -> bytes:
    """``text`` as bytes. Raises DataError if it is too large to be parsed."""
    if len(text.content) > LARGEST_JSON:
        raise DataError(f"has more than {LARGEST_JSON >> 20} MiB of JSON, the maximum for a log or a profile")
    return text.content.encode()


def require(text: Text, document: dict[str, Any], field: str, kind: type[Kind]) -> Kind:
    """``document[field]``. Raises DataError if it is missing or of another kind."""
    value = document.get(field)
    if not isinstance(value, kind):
        raise DataError(f"{field!r} is {value!r:.60}, not a {kind.__name__}")
    return value


def require_different(files: Sequence[str]) -> None:
    """Raise UsageError if a file is given twice: that adds nothing, and would count as a second measurement."""
    there = [os.path.realpath(file) if os.path.exists(file) else file for file in files]
    for file, place in zip(files, there, strict=True):
        if there.count(place) > 1:
            raise UsageError(f"{file} is given twice: give another file, or leave one out")


def is_number(value: str) -> bool:
    """Whether Python reads the text as a number."""
    try:
        float(value)
    except ValueError:
        return False
    return True
