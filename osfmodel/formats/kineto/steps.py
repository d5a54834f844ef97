"""Make the steps of one rank from the records of its trace.

Backward: from the first to the last node that autograd evaluates; where its sequence numbers climb above all before,
another forward was differentiated: one micro-batch more. A gradient is ready when the kernels end that had been
submitted when autograd had accumulated it and DDP's hook, which copies it into its bucket, had returned; on a CPU when
that hook calls the collective, or returns. Which work is of forward, backward or the update is asked of the host that
submitted it; when it ran, of the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from osfmodel.entities.errors import DataError
from osfmodel.entities.timeline import Interval
from osfmodel.entities.trace import Collective, GradientReady, ShardedUse, Step
from osfmodel.formats.kineto.collectives import Found, tensor_of
from osfmodel.formats.kineto.recorded import DDP, HostSpan, Recorded, unite
from osfmodel.formats.kineto.sharding import HostUse
from osfmodel.formats.kineto.windows import (
    OPTIMIZER_STEP,
    DeviceActivity,
    Needs,
    Window,
    bounds_of,
    device_of,
    windows_of,
)

LOADER = "enumerate(DataLoader)"


@dataclass(frozen=True, slots=True)
class _Host:
    """Host activity, sorted by start; ``starts`` are those of ``gradients``, ``hooks`` and ``copied`` rows
    (start, end)."""

    device: DeviceActivity
    backward: np.ndarray
    gradients: Sequence[HostSpan]
    starts: np.ndarray
    hooks: np.ndarray
    copied: np.ndarray
    updates: Sequence[HostSpan]
    loads: Sequence[HostSpan]
    uses: Sequence[HostUse]
    ddp: bool


@dataclass(frozen=True, slots=True)
class _Backward:
    """The last micro-batch's backward on the host, the start of its forward, and the number of micro-batches."""

    start: float
    end: float
    forward: float
    batches: int


def steps_of(kept: Recorded, found: Sequence[Found], uses: Sequence[HostUse], origin: float) -> tuple[list[Step], str]:
    """The steps, in seconds since ``origin`` (microseconds as in the file), and a sentence on how they were found.

    Raises DataError where there is no work.
    """
    device = device_of(kept)
    windows, said = windows_of(kept, device)
    submitted = np.array([one.submitted for one in found])
    inside = [np.flatnonzero((submitted >= w.start) & (submitted < w.end)).tolist() for w in windows]
    mine = [[found[place] for place in places] for places in inside]
    host = _host(kept, device, uses)
    steps = [
        _Reader(host, window, bound, origin).step(own)
        for window, bound, own in zip(windows, bounds_of(windows, device, mine), mine, strict=True)
        if bound is not None and bound[1] > bound[0]
    ]
    if not steps:
        raise DataError("has steps but no work in them: record the device too, activities=[CPU, CUDA]")
    return steps, said


def _host(kept: Recorded, device: DeviceActivity, uses: Sequence[HostUse]) -> _Host:
    gradients = sorted(kept.gradients, key=lambda span: span.start)
    backward, hooks, copied = kept.backward.rows(), kept.hooked.rows(), kept.copied.rows()
    return _Host(
        device,
        backward[np.argsort(backward[:, 0], kind="stable")],
        gradients,
        np.array([span.start for span in gradients]),
        hooks[np.argsort(hooks[:, 0], kind="stable")],
        copied[np.argsort(copied[:, 0], kind="stable")],
        [note for note in kept.notes if note.name.startswith(OPTIMIZER_STEP)],
        [note for note in kept.notes if note.name.startswith(LOADER)],
        uses,
        bool(len(copied)) or any(note.name.startswith(DDP) for note in kept.notes),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reader of one step; ``bound`` is its interval on the device, in microseconds."""

    host: _Host
    window: Window
    bound: Interval
    origin: float

    def step(self, found: Sequence[Found]) -> Step:
        """The step, with the collectives that were submitted in it."""
        start, end = self._seconds(self.bound)
        last = self._last_backward()
        if last and self.host.device.host:
            found = self._needs(last).ended(found)
        return Step(
            number=self.window.number,
            start=start,
            end=end,
            compute=self._inside(self.host.device.busy),
            collectives=tuple(map(self._collective, found)),
            gradients=self._gradients(last, found) if last else (),
            copies=self._inside(self.host.device.copies),
            inputs=self._inputs(),
            forward=self._on_device(last.forward, last.start) if last else None,
            backward=self._on_device(last.start, math.nextafter(last.end, math.inf)) if last else None,
            update=self._update(),
            micro_batches=last.batches if last else 1,
            ddp=self.host.ddp,
            uses=tuple(self._uses()),
        )

    def _uses(self) -> Iterator[ShardedUse]:
        """The uses of groups that begin in the step and have work on the device."""
        for use in self.host.uses:
            if self.window.start <= use.start < self.window.end:
                span = self._on_device(use.start, use.end)
                if span is not None:
                    yield ShardedUse(use.module, use.backward, *span)

    def _seconds(self, interval: Interval) -> Interval:
        start, end = interval
        return max(0.0, (start - self.origin) * 1e-6), max(0.0, (end - self.origin) * 1e-6)

    def _second(self, time: float) -> float:
        return self._seconds((time, time))[0]

    def _on_device(self, start: float, end: float) -> Interval | None:
        """The interval in which the device ran work that was submitted from ``start`` to before ``end``."""
        span = self.host.device.span(start, end)
        return None if span is None else self._seconds((max(span[0], self.bound[0]), max(span[1], self.bound[0])))

    def _inside(self, union: np.ndarray) -> tuple[Interval, ...]:
        start, end = self.bound
        rows = union[np.searchsorted(union[:, 1], start, "right") : np.searchsorted(union[:, 0], end)]
        return self._intervals(np.clip(rows, start, end))

    def _intervals(self, rows: np.ndarray) -> tuple[Interval, ...]:
        rows = unite(np.maximum((rows - self.origin) * 1e-6, 0.0))
        return tuple((float(start), float(end)) for start, end in rows)

    def _last_backward(self) -> _Backward | None:
        backward = self.host.backward
        first, last = np.searchsorted(backward[:, 0], (self.window.start, self.window.end))
        rows = backward[first:last]
        if not len(rows):
            return None
        parts = self._parts(rows)
        counts = {self._accumulated(part) for part in parts}
        if len(counts) > 1:  # losses of several models, not several micro-batches of one
            parts = [rows]
        forward = self.window.start if len(parts) == 1 else float(parts[-2][:, 1].max())
        return _Backward(float(parts[-1][0, 0]), float(parts[-1][:, 1].max()), forward, len(parts))

    def _parts(self, rows: np.ndarray) -> list[np.ndarray]:
        """The parts of backward, one per micro-batch: cut before each node of a later forward than all before it."""
        known = np.flatnonzero(np.isfinite(rows[:, 2]))
        if not len(known):
            return [rows]
        threads = rows[known, 3]
        same = known[(threads == threads[0]) | np.isnan(threads)]
        peaks = np.maximum.accumulate(rows[same, 2])
        climbs = same[1:][peaks[1:] > peaks[:-1]]
        return np.split(rows, climbs)

    def _accumulated(self, rows: np.ndarray) -> int:
        """Number of gradients that were accumulated in a part of backward."""
        first, last = np.searchsorted(self.host.starts, (rows[0, 0], np.nextafter(rows[-1, 0], np.inf)))
        return int(last - first)

    def _update(self) -> Interval | None:
        mine = [note for note in self.host.updates if self.window.start <= note.start < self.window.end]
        spans = [span for note in mine if (span := self._on_device(note.start, np.nextafter(note.end, np.inf)))]
        return (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else None

    def _inputs(self) -> tuple[Interval, ...]:
        """The host's waits for its data loader."""
        mine = [(note.start, note.end) for note in self.host.loads if self.window.start <= note.start < self.window.end]
        return self._intervals(np.array(mine).reshape(-1, 2))

    def _needs(self, last: _Backward) -> Needs:
        """Host actions of the step that need its gradients, on a CPU."""
        host = self.host
        first, end = np.searchsorted(host.starts, (last.start, math.nextafter(last.end, math.inf)))
        copies = np.searchsorted(host.copied[:, 0], (last.end, self.window.end))
        updates = sorted(note.start for note in host.updates if self.window.start <= note.start < self.window.end)
        accumulated = np.sort([s.end for s in host.gradients[first:end] if not _undefined(s)])
        interval = (last.start, last.end)
        return Needs(interval, accumulated, host.copied[slice(*copies)], np.array(updates), host.device.busy)

    def _collective(self, one: Found) -> Collective:
        start, end = self._seconds((one.start, one.end))
        return Collective(
            kind=one.kind,
            start=start,
            end=end,
            issued=None if one.issued is None else self._second(one.issued),
            elements=one.elements,
            dtype=one.dtype,
            sized_by=one.sized_by,
            group=one.group,
            sequence=one.sequence,
            workers=one.workers,
            shard=one.shard,
            received=one.received,
        )

    def _gradients(self, last: _Backward, found: Sequence[Found]) -> tuple[GradientReady, ...]:
        """Gradients in the order in which the host accumulated them; ready times never decrease."""
        starts = self.host.starts
        first, end = np.searchsorted(starts, (last.start, math.nextafter(last.end, math.inf)))
        mine = sorted((s for s in self.host.gradients[first:end] if not _undefined(s)), key=lambda span: span.end)
        if not mine:
            return ()
        times = self._ready(np.array([self._returned(span) for span in mine]), np.array([s.end for s in mine]), found)
        times = np.maximum.accumulate(np.maximum(times, self.bound[0]))
        return tuple(
            GradientReady(self._second(time), None, *tensor_of(span.args), accumulated=self._second(span.end))
            for span, time in zip(mine, times.tolist(), strict=True)
        )

    def _ready(self, returned: np.ndarray, accumulated: np.ndarray, found: Sequence[Found]) -> np.ndarray:
        """Times at which the device had each gradient, given those at which its hook returned on the host."""
        device = self.host.device
        if device.host:
            calls = np.sort([np.inf, *(one.issued for one in found if one.issued is not None)])
            return np.asarray(np.minimum(returned, calls[np.searchsorted(calls, accumulated)]))
        places = device.places(self.window.start, self.window.end)
        reach: np.ndarray = np.maximum.accumulate(device.rows[places, 1])
        done = np.searchsorted(device.submitted[places], returned, "right")
        return np.asarray(np.append(-np.inf, reach)[done])

    def _returned(self, span: HostSpan) -> float:
        """Time at which the node around an accumulation returned, DDP's hook included."""
        hooks = self.host.hooks
        place = int(np.searchsorted(hooks[:, 0], span.start, "right")) - 1
        return float(hooks[place, 1]) if place >= 0 and hooks[place, 1] >= span.end else span.end


def _undefined(span: HostSpan) -> bool:
    """Whether there was no gradient to accumulate, as for a parameter that backward did not reach."""
    types = span.args.input_types
    return isinstance(types, list) and bool(types) and types[0] == ""
