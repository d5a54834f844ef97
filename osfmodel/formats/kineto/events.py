"""The events of Kineto's traces, written by torch.profiler, from any number of files, archives and folders.

A trace is a JSON object (libkineto/src/output_json.cpp): ``traceEvents``, and beside it what the whole is about
(``deviceProperties``, ``distributedInfo``, ``baseTimeNanoseconds`` ...). Times are microseconds. Events that nobody
asked for are dropped before their ``args`` are decoded, and of ``args`` only what says something about a job is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from osfmodel.entities.errors import LARGEST_COUNT, DataError
from osfmodel.entities.measurement import TELLING, checksum_of
from osfmodel.formats.source_text import Files, Progress, Text, silent
from osfmodel.formats.streams import opened, peeked
from osfmodel.formats.streams.json_stream import DECODER, ArrayStream

SPELLINGS: Mapping[str, str] = {
    "external_id": "External id", "older_external_id": "external id", "correlation": "correlation", "stream": "stream",
    "collective": "Collective name", "dtype": "dtype", "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems", "group_size": "Group size", "group_name": "Process Group Name", "seq": "Seq",
    "input_dims": "Input Dims", "input_types": "Input type", "forward_thread": "Fwd thread id",
    "sequence_number": "Sequence number", "name": "name",
}  # fmt: skip
"""Spellings of args in a trace."""
COUNTS = ("in_elements", "out_elements", "group_size")
"""Args that must be counts, since a collective cannot be priced without them."""
WORDS = ("collective", "dtype", "group_name", "name")
ANYTHING = ("input_dims", "input_types")
LABEL = "a trace of torch.profiler"
ENDINGS = (".json", ".json.gz")
"""Endings of traces in a folder."""
NAMES = {spelling: name for name, spelling in SPELLINGS.items()}
METADATA = "M"
NO_RAW = msgspec.Raw()
LARGEST = 2.0**62
MOST_NAMES = 2**16
"""Maximum number of different names to remember; a trace with more has numbered them."""
BEGINS = re.compile(r"\A\ufeff?\s*\{")
EVENTS, PROPERTIES = re.compile(r'"traceEvents"\s*:\s*\['), re.compile(r'"deviceProperties"\s*:')
SIGNS = re.compile(
    r'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:|"cat"\s*:\s*"(?:cpu_op|kernel|cuda_runtime)"'
)


class Args(msgspec.Struct, gc=False, rename=SPELLINGS):
    """An event's args; None if missing or impossible. ``in_bytes`` is for records of bytes instead of elements."""

    external_id: int | None = None
    older_external_id: int | None = None
    correlation: int | None = None
    stream: int | None = None
    collective: str | None = None
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    group_name: str | None = None
    seq: int | None = None
    input_dims: Any = None
    input_types: Any = None
    forward_thread: int | None = None
    sequence_number: int | None = None
    name: str | None = None
    in_bytes: int | None = None


class Event(msgspec.Struct, gc=False):
    """One event, as written: ``ts`` and ``dur`` in microseconds, ``pid`` and ``tid`` as text, ``cat`` may be empty."""

    ph: str
    cat: str
    name: str
    ts: float
    dur: float
    pid: str
    tid: str
    args: Args
    id: str | None = None


class RawEvent(msgspec.Struct, gc=False):
    """An event whose ``args`` are not decoded yet, or were parsed the slow way."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float | None = None
    dur: float | None = None
    pid: int | str = ""
    tid: int | str = ""
    id: int | str | None = None
    args: msgspec.Raw = NO_RAW


class ParsedEntry(RawEvent):
    """An event that msgspec refused, or whose neighbours it refused: its args are parsed, but not checked."""

    parsed: Any = None


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The trace of one rank: ``events`` in the order of the file, once. ``path`` names it for people.

    ``checksum`` tells it from others of its name.
    ``header`` has the members beside the events, at first those before them; it is complete when the events end.
    """

    path: str
    header: Mapping[str, Any]
    events: Iterator[Event]
    checksum: str


def is_trace(head: str) -> bool:
    """Whether a file that begins with ``head`` is a trace of torch.profiler."""
    if not BEGINS.match(head) or not SIGNS.search(head):
        return False
    return EVENTS.search(head) is not None or (PROPERTIES.search(head) is not None and '"schemaVersion"' in head)


def read_events(
    paths: Sequence[Path | Text],
    keep: Callable[[str, str], bool] | None = None,
    tell: Callable[[str], None] = silent,
    progress: Progress | None = None,
) -> Iterator[TraceFile]:
    """A trace for each rank's file in ``paths``: files, archives and folders of them, or texts in memory.

    keep:     (category, name) -> whether such events are wanted; asked once for each, unless they are very many
    tell:     receives a sentence on each file that is left out, with the reason
    progress: called with (bytes read, bytes in all files), as they are on disk, after each 16 KiB

    Take the events of one trace to their end before the next. Raises DataError, which names file and event.
    """
    for name, pieces in opened(Files(tuple(paths), tell, progress), is_trace, ENDINGS, LABEL):
        yield _begun(name, pieces, _Choice(keep))


Batches = Iterator[tuple[int, list[RawEvent]]]


def _begun(name: str, pieces: Iterator[bytes], choice: _Choice) -> TraceFile:
    """The trace in these pieces of its file; the part before the events is already in its header."""
    try:
        start, rest = peeked(pieces, TELLING)
        stream = ArrayStream(rest, "traceEvents", _decoded, entry_of)
        batches = stream.batches()
        next(batches, None)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    return TraceFile(name, stream.header, _events(name, batches, choice), checksum_of(start))


def _events(name: str, batches: Batches, choice: _Choice) -> Iterator[Event]:
    try:
        for first, entries in batches:
            for number, entry in enumerate(entries, first):
                chosen = choice.names.get((entry.cat, entry.name)) or choice.of(entry)
                if chosen.kept:
                    yield event_of(number, entry, chosen)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A category and a name, held once for all their events, and whether these are kept."""

    cat: str
    name: str
    kept: bool


@dataclass(slots=True)
class _Choice:
    keep: Callable[[str, str], bool] | None
    names: dict[tuple[str, str], _Chosen] = field(default_factory=dict)

    def of(self, entry: RawEvent) -> _Chosen:
        """The decision on events such as this."""
        if len(self.names) >= MOST_NAMES:
            self.names.clear()
        kept = self.keep is None or self.keep(entry.cat, entry.name)
        chosen = self.names[entry.cat, entry.name] = _Chosen(entry.cat, entry.name, kept)
        return chosen


NO_ARGS = Args()
_ENTRIES = msgspec.json.Decoder(list[RawEvent])
_ARGS = msgspec.json.Decoder(Args)


def _decoded(content: bytes) -> list[RawEvent] | None:
    try:
        return _ENTRIES.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def event_of(number: int, entry: RawEvent, chosen: _Chosen) -> Event:
    """The event with its kept args. Raises DataError with its number for impossible times or counts."""
    start, duration = entry.ts, entry.dur
    if start is None and entry.ph == METADATA:
        start = 0.0
    if start is None or not -LARGEST < start < LARGEST:
        raise DataError(f"event {number:,}: {entry.name[:60]!r} has no time 'ts' in microseconds")
    if duration is None:
        duration = 0.0
    if not 0 <= duration < LARGEST:
        raise DataError(f"event {number:,}: {entry.name[:60]!r} takes {duration} microseconds")
    try:
        args = args_of(entry)
    except DataError as error:
        raise DataError(f"event {number:,}: {entry.name[:60]!r}: {error}") from None
    flow = None if entry.id is None else str(entry.id)
    return Event(entry.ph, chosen.cat, chosen.name, start, duration, str(entry.pid), str(entry.tid), args, flow)


def args_of(entry: RawEvent) -> Args:
    """The kept args. Raises DataError if a count of a collective is not a count."""
    if isinstance(entry, ParsedEntry):
        return _converted(entry.parsed)
    if entry.args is NO_RAW:
        return NO_ARGS
    try:
        args = _ARGS.decode(entry.args)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _converted(_untyped(entry.args))
    if args.external_id is None:
        args.external_id = args.older_external_id
    if args.group_size is not None or args.in_elements is not None or args.out_elements is not None:
        _check_counts(args)
    return args


def _untyped(args: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(args)
    except (msgspec.DecodeError, UnicodeDecodeError):  # a number that no float holds, or bytes that are not text
        try:
            return DECODER.decode(bytes(args).decode("utf-8", "replace"))
        except ValueError:
            raise DataError("holds a number with too many digits") from None


def _check_counts(args: Args) -> None:
    for name in COUNTS:
        count = getattr(args, name)
        if count is not None and not 0 <= count <= LARGEST_COUNT:
            raise DataError(
                f"{SPELLINGS[name]!r} is {count!r:.60}, which is not a whole number from 0 to {LARGEST_COUNT}"
            )


def _converted(parsed: Any) -> Args:
    args = Args()
    for spelling, value in parsed.items() if isinstance(parsed, dict) else ():
        name = NAMES.get(spelling)
        if name is None or value is None:
            continue
        if name in WORDS:
            setattr(args, name, _word(value))
        elif name in ANYTHING:
            setattr(args, name, value)
        else:
            setattr(args, name, _whole(name, spelling, value))
    args.external_id = args.older_external_id if args.external_id is None else args.external_id
    return args


def _word(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return None if isinstance(value, bool | dict) else str(value)


def _whole(name: str, spelling: str, value: Any) -> int | None:
    """A whole number; for args that are not checked, None if it is not one."""
    number = _number(value)
    if number == number // 1 and (0 <= number <= LARGEST_COUNT or name not in COUNTS):
        return value if isinstance(value, int) else int(number)
    if name in COUNTS:
        raise DataError(f"{spelling!r} is {value!r:.60}, which is not a whole number from 0 to {LARGEST_COUNT}")
    return None


def _number(value: Any) -> float:
    """A number, or the number in a text; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def entry_of(value: Any) -> ParsedEntry:
    """An event that was parsed without a type. Raises DataError if it is not an object."""
    if not isinstance(value, dict):
        raise DataError(f"is {value!r:.40}, not an object {{...}}")
    entry = ParsedEntry(_text(value.get("name")), _text(value.get("ph")), _text(value.get("cat")))
    entry.pid, entry.tid, entry.id = _text(value.get("pid")), _text(value.get("tid")), None
    if value.get("id") is not None:
        entry.id = _text(value["id"])
    entry.ts, entry.dur = (None if value.get(key) is None else _number(value[key]) for key in ("ts", "dur"))
    entry.parsed = value.get("args")
    return entry


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return str(value) if isinstance(value, int | float) else ""
