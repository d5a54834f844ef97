"""The events of a Horovod timeline, and the stages of each tensor's all-reduce.

HOROVOD_TIMELINE writes an array of Chrome trace events (horovod/common/timeline.cc), times in microseconds. A tensor
is a "process", named by a metadata event. Its NEGOTIATE_ALLREDUCE begins when the loop of a worker found it and ends
when all have it; in between, the coordinator notes the rank of each worker that asked ('X'), unless the answer is in
the response cache. Then comes its ALLREDUCE with activities inside: copies, waits, the collective itself. The event
that ends it has dtype and shape. CYCLE_START marks each turn of the loop, where asked for.

Horovod 0.28 keeps the array closed at all times; older ones never close it, and what was killed is cut off anywhere.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.entities.records import dataclass, field, replace
from osfmodel.formats.source_text import Text

BETWEEN = re.compile(r"[\s,]*")
TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|"|[{}]', re.DOTALL)
SHAPE = re.compile(r"\[(\d{1,18}(?:, ?\d{1,18})*)?\]")
ELEMENT_BYTES = {
    "uint8": 1, "int8": 1, "bool": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "float32": 4,
    "int64": 8, "float64": 8,
}  # fmt: skip
PREFIX = re.compile(r"(?:DistributedOptimizer[._/]Allreduce[._/])?(?:(?:grouped_)?allreduce\.)?")
"""Prefix that Horovod puts before the name of a tensor."""
AROUND = ("WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA", "QUEUE", "INIT_FUSION_BUFFER", "MEMCPY_IN_FUSION_BUFFER",
          "MEMCPY_OUT_FUSION_BUFFER", "INIT_NCCL", "ALLOCATE_OUTPUT", "ALLOCATE_SHARED_BUFFER")  # fmt: skip
"""Activities of an all-reduce that are not the collective itself."""
LARGEST = 2**62
WIDTHS = (512, 65_536)
"""Maximum characters of an event, tried in turn: most events fit into the first."""


@dataclass(slots=True)
class Activity:
    """One activity of a tensor: the numbers of the events that begin and end it, and their times in seconds."""

    name: str
    first: int
    start: float
    last: int = 0
    end: float = 0.0


@dataclass(slots=True)
class TensorWait:
    """The time at which the first worker's loop ``found`` a tensor, and since when it can have waited, in seconds.

    ``unseen_since`` is the start of the cycle before, None where cycles are not marked; ``agreed`` is the same two
    times for the last worker, None if all were not seen to have it; ``ranks`` are those that the coordinator heard of,
    none where the response cache answered.
    """

    found: float
    unseen_since: float | None = None
    agreed: tuple[float, float | None] | None = None
    ranks: set[int] = field(default_factory=set)

    @property
    def by_all(self) -> tuple[float, float | None]:
        """``found`` and ``unseen_since`` of the last worker."""
        return self.agreed or (self.found, self.unseen_since)


@dataclass(slots=True)
class TensorSpan:
    """One all-reduce of one tensor, from event number ``first`` on; ``size`` in bytes once it ended."""

    name: str
    first: int
    start: float
    asked: TensorWait
    activities: list[Activity] = field(default_factory=list)
    end: float = 0.0
    size: int | None = None
    dtype: str = ""

    @property
    def inside(self) -> int:
        """The number of the first event inside the span."""
        return self.activities[0].first if self.activities else 0

    def activity(self, name: str) -> Activity | None:
        """The first activity of that name."""
        return next((entry for entry in self.activities if entry.name == name), None)

    @property
    def collective(self) -> list[Activity]:
        """The activities of the collective itself: one, or the steps of a hierarchical one."""
        return [entry for entry in self.activities if entry.name not in AROUND]


@dataclass(slots=True)
class Cycle:
    """One turn of the loop: its start, and that of its first collective (None: it had none), in seconds.

    ``idle`` where nothing was negotiated or begun; ``asked`` where ranks were asked, as the cache did not know.
    """

    start: float
    first: float | None = None
    idle: bool = True
    asked: bool = False


def entries(text: Text) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, event), from 1 on, of an array that may not be closed, or be cut off in its last event.

    Raises DataError, with number and text, for anything but an array of objects.
    """
    content = text.content
    place = len(content) - len(content.lstrip())
    if content[place : place + 1] != "[":
        raise DataError("is not a JSON array of events")
    decoder, number, place = json.JSONDecoder(), 1, place + 1
    while True:
        place = _after(BETWEEN, content, place)
        if place >= len(content) or content[place] == "]":
            break
        event, length = _event(decoder, content, place)
        if event is None and _cut_off(content, place):
            break
        if event is None:
            raise text.fault(number, content[place : place + 200], "is not a JSON object {...}")
        yield number, event
        number, place = number + 1, place + length
    if content[place + 1 :].strip():
        if content[place] == "]":
            raise text.fault(number, content[place + 1 :].lstrip()[:200], "comes after the end of the array")
        text.tell(f"event {number} was cut off and is left out")


def _after(pattern: re.Pattern[str], content: str, place: int) -> int:
    found = pattern.match(content, place)
    return found.end() if found else place


def _event(decoder: json.JSONDecoder, content: str, place: int) -> tuple[dict[str, Any] | None, int]:
    """The object at ``place``, None if there is none, and its length."""
    for width in WIDTHS:
        with suppress(ValueError, RecursionError):
            event, length = decoder.raw_decode(content[place : place + width])
            return (event if isinstance(event, dict) else None), length
    return None, 0


def _cut_off(content: str, place: int) -> bool:
    """Whether the object at ``place`` is still open at the end of the file."""
    if content[place] != "{" or len(content) - place > WIDTHS[-1]:
        return False
    depth = 0
    for token in TOKEN.finditer(content, place):
        if token[0] == '"':  # a text that never ends
            return True
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if not depth:
            return False
    return depth > 0


def element_bytes(text: Text, number: int, dtype: str) -> int:
    """Bytes of one element. Raises DataError with the place for a type that Horovod does not have."""
    if dtype not in ELEMENT_BYTES:
        raise text.fault(number, dtype, "is not a dtype of Horovod")
    return ELEMENT_BYTES[dtype]


class EventReader:
    """Reader of the events: ``spans`` of all-reduces in the order in which they begin, and ``cycles``."""

    def __init__(self, text: Text) -> None:
        self.text = replace(text, unit="event")
        self.spans: list[TensorSpan] = []
        self.cycles: list[Cycle] = []
        self._names: dict[Any, str] = {}
        self._taken: set[str] = set()
        self._open: dict[Any, list[str]] = {}
        self._asked: dict[Any, TensorWait] = {}
        self._running: dict[Any, TensorSpan] = {}

    def record(self) -> None:
        """Read all events of the text. Raises DataError with number and text for a wrong event."""
        actions = {"B": self._begin, "E": self._end, "X": self._rank, "i": self._mark}
        for number, event in entries(self.text):
            kind = event.get("ph")
            if kind == "M":
                self._name(number, event)
            elif isinstance(kind, str) and kind in actions:
                actions[kind](number, event, self._seconds(number, event))

    def _seconds(self, number: int, event: dict[str, Any]) -> float:
        time = event.get("ts")
        if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < LARGEST:
            raise self.text.fault(number, json.dumps(event)[:200], "has no time 'ts' in microseconds")
        return time * 1e-6

    def _name(self, number: int, event: dict[str, Any]) -> None:
        arguments = event.get("args")
        name = arguments.get("name") if isinstance(arguments, dict) else None
        if event.get("name") != "process_name" or not isinstance(name, str):
            return
        short = name[_after(PREFIX, name, 0) :]
        known = short if short and short not in self._taken else name
        self._taken.add(known)
        self._names[self._pid(number, event)] = known

    def _pid(self, number: int, event: dict[str, Any]) -> int | str:
        pid = event.get("pid")
        if not isinstance(pid, int | str):
            raise self.text.fault(number, json.dumps(event)[:200], "names no tensor by 'pid'")
        return pid

    def _stack(self, number: int, event: dict[str, Any]) -> tuple[int | str, list[str]]:
        pid = self._pid(number, event)
        if pid not in self._names:
            raise self.text.fault(
                number, json.dumps(event)[:200], f"has pid {pid!r:.40}, but no event names that process"
            )
        return pid, self._open.setdefault(pid, [])

    def _mark(self, number: int, event: dict[str, Any], time: float) -> None:
        if event.get("name") == "CYCLE_START":
            self.text.limit(number, len(self.cycles))
            self.cycles.append(Cycle(time))

    def _begin(self, number: int, event: dict[str, Any], time: float) -> None:
        pid, stack = self._stack(number, event)
        name = str(event.get("name", ""))
        if name.startswith("NEGOTIATE_"):
            self._busy()
            self._asked[pid] = self._found(time)
        elif not stack:
            self._busy(time)
            if name == "ALLREDUCE":
                self.text.limit(number, 6 * len(self.spans))
                asked = self._asked.pop(pid, None) or self._found(time)
                self._running[pid] = TensorSpan(self._names[pid], number, time, asked)
                self.spans.append(self._running[pid])
        elif len(stack) == 1 and pid in self._running:
            self._running[pid].activities.append(Activity(name, number, time))
        stack.append(name)

    def _found(self, time: float) -> TensorWait:
        """A tensor found by the present cycle, which looked when it started."""
        last = self.cycles[-2:]
        return TensorWait(last[-1].start if last else time, last[0].start if len(last) > 1 else None)

    def _busy(self, first: float | None = None) -> None:
        if self.cycles:
            self.cycles[-1].idle = False
            if self.cycles[-1].first is None:
                self.cycles[-1].first = first

    def _rank(self, number: int, event: dict[str, Any], time: float) -> None:
        pid, _ = self._stack(number, event)
        name = event.get("name")
        if pid in self._asked and isinstance(name, str) and name.isdecimal() and len(name) < 9:
            self._asked[pid].ranks.add(int(name))
            if self.cycles:
                self.cycles[-1].asked = True

    def _end(self, number: int, event: dict[str, Any], time: float) -> None:
        pid, stack = self._stack(number, event)
        arguments = event.get("args")
        if isinstance(arguments, dict) and "dtype" in arguments:
            del stack[1:]  # a fast worker may have asked for the tensor again before it was copied out here
        if not stack:  # began before the timeline did
            return
        name, span = stack.pop(), self._running.get(pid)
        if name.startswith("NEGOTIATE_") and pid in self._asked:
            last = self._found(time)
            self._asked[pid].agreed = last.found, last.unseen_since
        elif span is not None and len(stack) == 1 and span.activities:
            span.activities[-1].last, span.activities[-1].end = number, time
        elif span is not None and not stack:
            del self._running[pid]
            span.end = time
            if isinstance(arguments, dict):
                span.dtype, span.size = self._size(number, arguments)

    def _size(self, number: int, arguments: dict[str, Any]) -> tuple[str, int]:
        """Dtype and bytes of a tensor."""
        dtype, shape = arguments.get("dtype"), arguments.get("shape")
        found = SHAPE.fullmatch(shape) if isinstance(shape, str) else None
        if not isinstance(dtype, str) or found is None:
            raise self.text.fault(number, json.dumps(arguments)[:200], "has no dtype and shape such as '[64, 3]'")
        numbers = [int(length) for length in (found[1] or "").split(",") if length]
        size = element_bytes(self.text, number, dtype) * math.prod(numbers[:64])
        if size > LARGEST or len(numbers) > 64:
            raise self.text.fault(number, str(shape), "is too large to be the shape of a tensor")
        return dtype, size
