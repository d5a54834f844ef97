"""Start and end of each step of one rank's trace, on the host and on the device.

The host says when a step begins (``ProfilerStep#N``, else the end of ``Optimizer.step``), and all that it submits from
then on, from any thread, belongs to that step. A GPU works it off later, the more so the further its host runs ahead.
A step therefore ends on the device with the last kernel that was submitted in it (one that is still in flight when the
next step computes, a collective nobody waits for, does not count), and the next begins there. The first begins where
the host says so, if the device then was idle, which its first work shows by starting at once; else with that work, or
where what was submitted before it ends.
Steps so tile the time, and their mean is that of training. If the host computes, steps are as it annotates them.

A library that uses threads of the host, such as gloo, may close its note of a message late, when the thread that trains
has already gone on with what came of it. DDP waits for its buckets in their order and copies the gradients of each
back; the optimizer needs them all. So a message had ended when the pause before its copies was over; one that is in
flight when the optimizer begins, when the longest pause before that was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from osfmodel.entities.dtypes import holds_gradients
from osfmodel.entities.errors import DataError
from osfmodel.entities.timeline import Interval
from osfmodel.formats.kineto.collectives import Found
from osfmodel.formats.kineto.recorded import HostSpan, Recorded, launched, unite

AT_ONCE = 1000.0
"""Microseconds within which an idle device starts submitted work."""
WHOLE = 0.8
"""Fraction of the usual work that the first step needs to count as fully recorded."""
PROFILER_STEP = "ProfilerStep#"
OPTIMIZER_STEP = "Optimizer.step"
REMEDY = "call prof.step() after each step, with schedule(...)"


@dataclass(frozen=True, slots=True)
class Window:
    """A step on the host, in microseconds: work submitted from ``start`` to before ``end`` belongs to it."""

    number: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """Computation, sorted by when it was submitted; times in microseconds as in the file.

    rows:      (start, end), and ``submitted``, when the host submitted it: on a CPU when it starts
    busy:      their union; ``copies`` that of copies and memsets
    delays:    rows (submitted, delay from the call's return to the start) of all work, copies too, in that order
    host:      whether it is the CPU
    """

    rows: np.ndarray
    submitted: np.ndarray
    busy: np.ndarray
    copies: np.ndarray
    delays: np.ndarray
    host: bool

    def places(self, start: float, end: float) -> slice:
        """The rows that were submitted from ``start`` to before ``end``."""
        first, last = np.searchsorted(self.submitted, (start, end))
        return slice(int(first), int(last))

    def span(self, start: float, end: float) -> Interval | None:
        """The start of the first row submitted in that time, and the end of the last; None without any."""
        rows = self.rows[self.places(start, end)]
        return (float(rows[:, 0].min()), float(rows[:, 1].max())) if len(rows) else None


def device_of(kept: Recorded) -> DeviceActivity:
    """Activity of the GPU if one worked, else of the host's threads."""
    if not kept.on_device:
        busy = kept.computed()
        return DeviceActivity(busy, busy[:, 0], busy, np.zeros((0, 2)), busy * 0, True)
    rows, copies = kept.work.rows(), kept.copies.rows()
    both = np.concatenate((rows, copies))
    calls = launched(kept, both)
    submitted = _filled(both, calls[:, 0])
    delays = np.column_stack((submitted, both[:, 0] - calls[:, 1]))
    delays = delays[np.argsort(submitted, kind="stable")]
    submitted = submitted[: len(rows)]
    order = np.argsort(submitted, kind="stable")
    return DeviceActivity(rows[order, :2], submitted[order], unite(rows[:, :2]), unite(copies[:, :2]), delays, False)


def _filled(rows: np.ndarray, submitted: np.ndarray) -> np.ndarray:
    """Submission times; work without a recorded launch gets that of earlier work on its stream, or none before it.

    If no launch is on the record at all, work counts as submitted when it started.
    """
    if not np.isfinite(submitted).any():
        return np.asarray(rows[:, 0])
    order = np.lexsort((rows[:, 0], rows[:, 3]))  # stream by stream, each by time: one sort, however many there are
    streams, times, places = rows[order, 3], submitted[order], np.arange(len(rows))
    begins = np.maximum.accumulate(np.where(np.diff(streams, prepend=np.nan) != 0, places, 0))
    before = np.maximum.accumulate(np.where(np.isfinite(times), places, -1))
    filled = np.empty_like(submitted)
    filled[order] = np.where(before >= begins, times[np.maximum(before, 0)], -np.inf)
    return filled


def windows_of(kept: Recorded, device: DeviceActivity) -> tuple[list[Window], str]:
    """The steps on the host and, if they are not annotated, a sentence on how they were found."""
    marked = sorted((note for note in kept.notes if note.name.startswith(PROFILER_STEP)), key=lambda n: n.start)
    updates = sorted((note for note in kept.notes if note.name.startswith(OPTIMIZER_STEP)), key=lambda n: n.start)
    if marked:
        ends = [*(note.start for note in marked[1:]), marked[-1].end]
        numbers = [_number(note.name, place) for place, note in enumerate(marked)]
        return _by_updates(
            [Window(*row) for row in zip(numbers, (one.start for one in marked), ends, strict=True)], updates
        )
    return _by_optimizer(kept, device, updates) if updates else _whole_trace(kept, device)


def _by_updates(windows: list[Window], updates: Sequence[HostSpan]) -> tuple[list[Window], str]:
    """Steps from windows that are micro-batches, most without an optimizer step: each ends with such a step.

    Windows after the last one are not whole steps; nor is the first if it has fewer than most.
    """
    groups: list[list[Window]] = [[]]
    for window in windows:
        groups[-1].append(window)
        if any(window.start <= note.start < window.end for note in updates):
            groups.append([])
    whole = groups[:-1]
    usual = Counter(map(len, whole)).most_common(1)[0][0] if whole else 1
    if usual == 1:
        return windows, ""
    whole = whole[1:] if len(whole) > 1 and len(whole[0]) < usual else whole
    said = f"the profiler's steps are micro-batches: {usual} of them, to each step of the optimizer, are taken as one"
    return [Window(group[-1].number, group[0].start, group[-1].end) for group in whole], said


def _number(name: str, place: int) -> int:
    digits = name.removeprefix(PROFILER_STEP)
    return int(digits) if digits.isdecimal() and len(digits) < 16 else place


def _whole_trace(kept: Recorded, device: DeviceActivity) -> tuple[list[Window], str]:
    if not len(device.submitted):
        raise DataError("has no work of a device and no operators: record some steps of training")
    window = Window(0, kept.first, math.nextafter(float(device.submitted[-1]), math.inf))
    return [window], f"neither steps nor the optimizer's are annotated: the trace is taken as one step; {REMEDY}"


def _by_optimizer(kept: Recorded, device: DeviceActivity, updates: Sequence[HostSpan]) -> tuple[list[Window], str]:
    """Steps from the end of one optimizer step to the next; optimizers without backward in between count as one."""
    accumulated = np.sort(np.array([span.end for span in kept.gradients]))
    ends = []
    for note, following in zip(updates, [*updates[1:], None], strict=True):
        if following is None or not len(accumulated) or _between(accumulated, note.end, following.start):
            ends.append(note.end)
    starts = [kept.first, *ends[:-1]]
    found = [Window(n, start, end) for n, (start, end) in enumerate(zip(starts, ends, strict=True))]
    said = f"steps are not annotated: each ends with the optimizer's; {REMEDY}"
    if len(found) > 1 and not _is_whole(found, device):
        return found[1:], f"{said}; the first is not on the record from its beginning and is left out"
    return found, said


def _between(times: np.ndarray, start: float, end: float) -> bool:
    first, last = np.searchsorted(times, (start, end))
    return bool(last > first)


def _is_whole(windows: Sequence[Window], device: DeviceActivity) -> bool:
    """Whether the first step has about as much work as the others or, on a CPU, as much time."""
    work = [_work(device, window) for window in windows]
    return work[0] >= WHOLE * float(np.median(work[1:]))


def _work(device: DeviceActivity, window: Window) -> float:
    rows = device.rows[device.places(window.start, window.end)]
    return float((rows[:, 1] - rows[:, 0]).sum()) if device.host else float(len(rows))


def bounds_of(
    windows: Sequence[Window], device: DeviceActivity, found: Sequence[Sequence[Found]]
) -> list[Interval | None]:
    """Start and end of each step on the device, given the collectives of each; None for one without work."""
    if device.host:
        return [(window.start, window.end) for window in windows]
    spans = [device.span(window.start, window.end) for window in windows]
    bounds: list[Interval | None] = []
    before: float | None = None
    for place, (window, span) in enumerate(zip(windows, spans, strict=True)):
        if span is None:
            bounds.append(None)
            continue
        following = next((other[0] for other in spans[place + 1 :] if other), math.inf)
        reach = max((one.end for one in found[place]), default=0.0)
        start = _first(window, span, device) if before is None else min(before, span[1])
        before = max(span[1], min(reach, following))
        bounds.append((start, before))
    return bounds


def _first(window: Window, span: Interval, device: DeviceActivity) -> float:
    """Start of the first step: after earlier work, or on the host if the device was idle then."""
    earlier = device.rows[: device.places(window.start, window.end).start, 1]
    if len(earlier) and earlier.max() > window.start:
        return min(float(earlier.max()), span[1])
    delay = device.delays[np.searchsorted(device.delays[:, 0], window.start), 1]
    return span[0] if delay > AT_ONCE else min(window.start, span[0])


@dataclass(frozen=True, slots=True)
class Needs:
    """Host actions in a step that need its gradients, in microseconds; all ascending.

    backward:    from when to when it evaluated nodes of the last backward
    accumulated: when it had accumulated each gradient
    copies:      rows (start, end) of DDP's copies of gradients out of their buckets, after backward
    updates:     when steps of optimizers began
    busy:        rows (start, end): when it computed
    """

    backward: tuple[float, float]
    accumulated: np.ndarray
    copies: np.ndarray
    updates: np.ndarray
    busy: np.ndarray

    def ended(self, found: Sequence[Found]) -> list[Found]:
        """The collectives of the step in order of submission, with late notes of ended gradients corrected."""
        ended = []
        before = reached = -math.inf
        for one in found:
            if one.kind != "all_reduce" or not holds_gradients(one.dtype) or one.submitted < self.backward[0]:
                ended.append(one)
                continue
            latest = min(self._copied(before), self._updated(one, max(one.submitted, reached)))
            ended.append(one._replace(end=latest) if one.start < latest < one.end else one)
            before, reached = one.submitted, ended[-1].end
        return ended

    def _updated(self, one: Found, since: float) -> float:
        """End of the wait after ``since`` that let the optimizer begin, for a message in flight then."""
        begin = float(np.append(self.updates, math.inf)[np.searchsorted(self.updates, one.submitted)])
        return math.inf if one.end <= begin else self._went_on(min(max(since, self.backward[1]), begin), begin)

    def _copied(self, before: float) -> float:
        """End of the wait after which a message was copied, given when the one before it was submitted.

        Of no more gradients than were there then are copies in the buckets before it.
        """
        place = int(np.searchsorted(self.accumulated, before, "right"))
        if place >= len(self.copies) or (place and len(self.copies) != len(self.accumulated)):
            return math.inf
        since = float(self.copies[place - 1, 1]) if place else self.backward[1]
        return self._went_on(since, float(self.copies[place, 0]))

    def _went_on(self, since: float, until: float) -> float:
        """The end of the longest pause between two times; the second time if there is no pause."""
        first, last = np.searchsorted(self.busy[:, 1], since, "right"), np.searchsorted(self.busy[:, 0], until)
        rows = np.clip(self.busy[first:last], since, until)
        starts, ends = np.append(since, rows[:, 1]), np.append(rows[:, 0], until)
        longest = int(np.argmax(ends - starts))
        return float(ends[longest]) if ends[longest] > starts[longest] else until
