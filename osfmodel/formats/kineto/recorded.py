"""Records of a PyTorch profiler trace, kept while its events stream by; there may be ten million.

Device work and launches are a few numbers each in flat arrays; host events are kept only if they are about steps,
collectives, gradients or backward. Times are microseconds as in the file.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from osfmodel.formats.kineto.events import NO_ARGS, Event

CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "copy",
    "memset": "copy",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "hip_runtime": "launch",
    "runtime": "launch",
    "cpu_op": "host",
    "operator": "host",
    "user_annotation": "host",
}
"""Roles by category in lower case; old traces write Kernel, Operator, Runtime. gpu_user_annotation, which repeats on
the device what a user_annotation says of the host, is left out: each collective counts once."""
COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|msccl|oneccl", re.IGNORECASE)
LAUNCH = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
ISSUE = re.compile(r"record_param_comms|(?:nccl|rccl|gloo|mpi|ucc|xccl):|c10d::|_c10d_functional::")
BACKWARD = re.compile(r"autograd::engine::evaluate_function|\w*Backward\d*$|Torch-Compiled Region: !")
"""Nodes of backward, or all of it as a graph of compiled autograd, whose number has a mark before it."""
ACCUMULATE = "torch::autograd::AccumulateGrad"
COPIED = "reducer::copy_bucket_to_grad"
"""Suffix of the name of DDP's copy of a gradient out of its bucket."""
WAIT = re.compile(r"c10d::|_c10d_functional::|record_param_comms")
"""Host events that do not compute."""
LIBRARY_THREAD = ("gloo:", "mpi:", "ucc:")
"""Beginnings of the notes of a collective by the thread of a library that runs it on the host."""
DDP = "DistributedDataParallel.forward"
FSDP = ("FSDP::", "FullyShardedDataParallel._")
"""Beginnings of the notes of FSDP2 and FSDP1 of what they do before and after a group of modules: copies, and waits for
collectives."""
FSDP_COPIES = ("fsdp::all_gather_copy_in", "fsdp::chunk_cat")
"""FSDP2's operators that copy into the buffers of an all-gather and of a reduce-scatter, with the sizes in them."""
NOTES = ("ProfilerStep", "Optimizer.step", DDP, "enumerate(DataLoader)")
COMPILED = "## Call CompiledFxGraph"
LARGEST = 2**62
MOST_INTERVALS = 400_000
"""Intervals of the host's operators that are held before they are merged."""


class HostSpan(NamedTuple):
    """A span of the host's record: ``args`` are the event's."""

    name: str
    start: float
    end: float
    thread: str
    args: Any

    def holds(self, time: float) -> bool:
        """Whether ``time`` lies in the span."""
        return self.start <= time <= self.end


class Columns:
    """Rows of numbers, eight bytes each."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.values = array("d")

    def __len__(self) -> int:
        return len(self.values) // self.width

    def add(self, *row: float) -> None:
        """Add a row."""
        self.values.extend(row)

    def rows(self) -> np.ndarray:
        """All rows, as an array of shape (rows, width)."""
        return np.array(self.values, dtype=float).reshape(-1, self.width)


class Union:
    """The union of many intervals, in bounded memory."""

    def __init__(self) -> None:
        self.columns = Columns(2)

    def add(self, start: float, end: float) -> None:
        """Add an interval."""
        self.columns.add(start, end)
        if len(self.columns) >= MOST_INTERVALS:
            united = unite(self.columns.rows())
            self.columns = Columns(2)
            self.columns.values.extend(united.ravel())

    def rows(self) -> np.ndarray:
        """The intervals, ascending and separate, shape (n, 2)."""
        return unite(self.columns.rows())


def unite(rows: np.ndarray) -> np.ndarray:
    """The union of intervals (n, 2), ascending and separate."""
    rows = rows[rows[:, 1] > rows[:, 0]]
    if not len(rows):
        return rows.reshape(0, 2)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    first = np.concatenate(([True], rows[1:, 0] > reach[:-1]))
    last = np.append(np.flatnonzero(first)[1:] - 1, len(rows) - 1)
    return np.column_stack((rows[first, 0], reach[last]))


def without(rows: np.ndarray, holes: np.ndarray) -> np.ndarray:
    """The first union without the second, both as returned by ``unite``."""
    if not len(rows) or not len(holes):
        return rows
    edges = np.concatenate((rows.ravel(), holes.ravel()))
    change = np.concatenate((np.tile([1, -1], len(rows)), np.tile([-2, 2], len(holes))))
    order = np.argsort(edges, kind="stable")
    level = np.cumsum(change[order])
    edges = edges[order]
    inside = np.flatnonzero(level[:-1] == 1)
    return unite(np.column_stack((edges[inside], edges[inside + 1])))


@dataclass(slots=True)
class Recorded:
    """The records of one file.

    work, copies: rows (start, end, correlation, stream) of kernels that compute, and of copies and memsets
    kernels:      those of collectives; ``issues``: what the host says of collectives
    launches:     rows (correlation, start, end) of the calls that submitted them
    backward:     rows (start, end, sequence number, forward thread) of backward nodes, NaN where not recorded
    sharding:     notes of FSDP and its copies
    gradients:    accumulations; ``hooked``: rows (start, end) of the nodes around them, DDP's hook included
    operators:    operators of each thread of the host; ``nodes``: those of backward around others; ``waits``: calls of
                  collectives; ``hooks_of_fsdp``: what FSDP2 does between modules; ``by_library``: collectives run by
                  each thread; ``copied``: rows (start, end) of DDP's copies of gradients out of their buckets; all
                  kept only where they are asked for
    process:      the number of that which annotates the steps; ``gpus``: those of the devices of collectives
    """

    work: Columns = field(default_factory=lambda: Columns(4))
    copies: Columns = field(default_factory=lambda: Columns(4))
    launches: Columns = field(default_factory=lambda: Columns(3))
    backward: Columns = field(default_factory=lambda: Columns(4))
    hooked: Columns = field(default_factory=lambda: Columns(2))
    kernels: list[HostSpan] = field(default_factory=list)
    issues: list[HostSpan] = field(default_factory=list)
    gradients: list[HostSpan] = field(default_factory=list)
    notes: list[HostSpan] = field(default_factory=list)
    sharding: list[HostSpan] = field(default_factory=list)
    operators: dict[str, Union] = field(default_factory=lambda: defaultdict(Union))
    nodes: Union = field(default_factory=Union)
    waits: Union = field(default_factory=Union)
    hooks_of_fsdp: Union = field(default_factory=Union)
    by_library: dict[str, Union] = field(default_factory=lambda: defaultdict(Union))
    copied: Columns = field(default_factory=lambda: Columns(2))
    first: float = float("inf")
    compiled: bool = False
    process: str = ""
    gpus: set[str] = field(default_factory=set)

    @property
    def on_device(self) -> bool:
        """Whether a device worked."""
        return bool(len(self.work) or self.kernels)

    def computed(self) -> np.ndarray:
        """Rows (start, end) in which the host's threads computed, a union.

        The thread of a library copies for its collective, which is no computation of the model. A node of backward
        in which FSDP2's hooks ran holds their waits, so that of these hooks only the operators inside count.
        """
        threads = [
            without(operators.rows(), self.by_library[thread].rows()) if thread in self.by_library else operators.rows()
            for thread, operators in self.operators.items()
        ]
        nodes = without(self.nodes.rows(), self.hooks_of_fsdp.rows())
        return without(unite(np.concatenate([*threads, nodes])), self.waits.rows())


Handler = Callable[[Recorded, Event], None]


def _span(event: Event) -> HostSpan:
    return HostSpan(event.name, event.ts, event.ts + event.dur, event.tid, event.args)


def _row(event: Event) -> tuple[float, float, float, float]:
    return event.ts, event.ts + event.dur, _number(event.args.correlation, -1.0), _number(event.args.stream, -1.0)


def _number(value: int | None, missing: float = math.nan) -> float:
    """A number as a float; ``missing`` for None and for values that no counter reaches."""
    return missing if value is None or abs(value) >= LARGEST else float(value)


def _kernel(kept: Recorded, event: Event) -> None:
    kept.kernels.append(_span(event))
    kept.gpus.add(event.pid)


def _note(kept: Recorded, event: Event) -> None:
    kept.notes.append(_span(event))
    kept.process = kept.process or event.pid


def _compiled(kept: Recorded, event: Event) -> None:
    kept.compiled = True


def _backward(kept: Recorded, event: Event) -> None:
    sequence, thread = event.args.sequence_number, event.args.forward_thread
    if thread == 0:
        return  # a forward node that only has "Backward" in its name
    kept.backward.add(event.ts, event.ts + event.dur, _number(sequence), _number(thread))
    if event.name.endswith(ACCUMULATE):
        kept.hooked.add(event.ts, event.ts + event.dur)


def _gradient(kept: Recorded, event: Event) -> None:
    sized = event.args.input_dims is not None or event.args.input_types is not None
    kept.gradients.append(_span(event)._replace(args=event.args if sized else NO_ARGS))  # of which there are many
    kept.backward.add(event.ts, event.ts + event.dur, math.nan, math.nan)


def handler(cat: str, name: str) -> Handler | None:
    """The function that records events of that category and name; None for events that do not matter."""
    role = CATEGORIES.get(cat.lower())
    if role == "kernel":
        return _kernel if COLLECTIVE_KERNEL.search(name) else lambda kept, event: kept.work.add(*_row(event))
    if role == "copy":
        return lambda kept, event: kept.copies.add(*_row(event))
    if role == "launch" and LAUNCH.search(name):
        return lambda kept, event: kept.launches.add(_number(event.args.correlation), event.ts, event.ts + event.dur)
    return _host_handler(name) if role == "host" else None


def _host_handler(name: str) -> Handler | None:
    if name == ACCUMULATE:
        return _gradient
    if name.startswith(NOTES):
        return _note
    if name.startswith(COMPILED):
        return _compiled
    if name.startswith((*FSDP, *FSDP_COPIES)):
        return lambda kept, event: kept.sharding.append(_span(event))
    if ISSUE.match(name):
        return lambda kept, event: kept.issues.append(_span(event))
    return _backward if BACKWARD.match(name) else None


def wanted(cat: str, name: str) -> bool:
    """Whether events of this category and name are kept if a device computes."""
    return handler(cat, name) is not None


def wanted_of_host(cat: str, name: str) -> bool:
    """Whether events of this category and name are kept if the host computes: its operators and FSDP2's notes too."""
    return _computes(cat) or name.startswith(FSDP) or wanted(cat, name)


def _computes(cat: str) -> bool:
    return cat.lower() in ("cpu_op", "operator")


def record(events: Iterable[Event], operators: bool = False) -> Recorded:
    """Record the events that matter, one by one; ``operators``: whether the host's operators are computation."""
    kept = Recorded()
    handlers: dict[tuple[str, str], Handler | None] = {}
    for event in events:
        if event.ph != "X":
            continue
        key = event.cat, event.name
        if key not in handlers:
            handlers[key] = handler(*key)
        act = handlers[key]
        if act is not None:
            act(kept, event)
            kept.first = min(kept.first, event.ts)
        if operators:
            _on_host(kept, event)
    return kept


def _on_host(kept: Recorded, event: Event) -> None:
    """Record whether a thread of the host computed, or ran a collective, in this event."""
    span = event.ts, event.ts + event.dur
    if event.name.startswith(LIBRARY_THREAD):
        kept.by_library[event.tid].add(*span)
    elif event.name.startswith(FSDP):
        kept.hooks_of_fsdp.add(*span)
    elif _computes(event.cat) and not event.name.startswith(NOTES):
        inside = kept.nodes if BACKWARD.match(event.name) else kept.operators[event.tid]
        (kept.waits if WAIT.match(event.name) else inside).add(*span)
        if event.name.endswith(COPIED):
            kept.copied.add(*span)


def launch_times(kept: Recorded) -> Mapping[float, float]:
    """Submission times on the host, by correlation id."""
    rows = kept.launches.rows()
    return dict(zip(rows[:, 0].tolist(), rows[:, 1].tolist(), strict=True))


def launched(kept: Recorded, rows: np.ndarray) -> np.ndarray:
    """Begin and return of the call that submitted each row of work; NaN if the trace does not say."""
    launches = kept.launches.rows()
    if not len(launches):
        return np.full((len(rows), 2), np.nan)
    launches = launches[np.argsort(launches[:, 0], kind="stable")]
    place = np.minimum(np.searchsorted(launches[:, 0], rows[:, 2]), len(launches) - 1)
    return np.where((launches[place, 0] == rows[:, 2])[:, None], launches[place, 1:], np.nan)
