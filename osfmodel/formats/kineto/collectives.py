"""The collectives in a trace: their kernels, the host's records of them, and their sizes.

On a GPU a collective is a kernel; its size is in the kernel's own arguments, or on the host in the
``record_param_comms`` or ``nccl:all_reduce`` around its launch (one collective may be on the record up to four times:
it is counted by its kernel, once). On a CPU it is what the library's thread notes, ``gloo:all_reduce``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from osfmodel.entities.trace import Sharded, places
from osfmodel.formats.kineto.recorded import LARGEST, LIBRARY_THREAD, HostSpan, Recorded, launch_times

KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "barrier": "barrier",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}
"""Kinds of collectives by a part of their names, without underscores; the first match counts."""
DTYPES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "byte": "uint8",
    "char": "int8",
    "unsignedchar": "uint8",
    "int": "int32",
    "long": "int64",
    "longint": "int64",
    "bool": "bool",
}
REDUCED = re.compile(r"sum|prod|max|min|avg", re.IGNORECASE)
KERNEL_DTYPE = re.compile(r"(?<![a-z0-9])(bf16|f16|f32|f64|__nv_bfloat16|hip_bfloat16|half|float|double)(?![a-z0-9])")
BEFORE = float("-inf")
MOST_DIMS, MOST_SIDES = 64, 100_000
"""Maximum dimensions of a tensor, and maximum tensors of a list."""
BASES = ("allgather_base_", "reduce_scatter_base_")
"""Ends of the names of operators whose first two inputs are the whole vector and one rank's part of it."""
EXCHANGE = "alltoall_base_"
"""End of the name of the operator of an all-to-all whose first two inputs are what a rank gets and what it sends."""
LONGEST_LOOK = 8
"""Maximum number of host spans before a launch that are searched for the one that contains it."""


class Found(NamedTuple):
    """A collective found in the trace; times in microseconds as in the file.

    ``called``: the kind that was called, if the library runs it as another; ``shard``: the parameters that it is about;
    ``received``: elements that this rank gets in an all-to-all; ``thread``: the library's, if it notes collectives;
    ``bytes``: of one rank's part, if the record has no elements.
    """

    kind: str
    start: float
    end: float
    issued: float | None
    elements: int | None
    dtype: str | None
    sized_by: str
    group: str
    sequence: int | None
    workers: int | None
    called: str = ""
    shard: Sharded | None = None
    received: int | None = None
    thread: str = ""
    bytes: int | None = None

    @property
    def submitted(self) -> float:
        """Time at which the host submitted it; its start if the trace does not say."""
        return self.start if self.issued is None else self.issued


class Size(NamedTuple):
    """Input of one rank, and where it was read."""

    elements: int
    dtype: str | None
    by: str


def kind_of(name: str) -> str | None:
    """The collective that a kernel, an annotation or an argument names; None if it names none."""
    bare = name.lower().replace("_", "").replace("nccldevkernel", "").replace("ncclkernel", "")
    return next((kind for word, kind in KINDS.items() if word in bare), None)


def dtype_of(written: str | None) -> str | None:
    """The workload's name of a dtype such as ``Float``, ``c10::BFloat16`` or ``float``; None if not stated."""
    if not isinstance(written, str) or not written:
        return None
    bare = written.rpartition("::")[2].lower().replace(" ", "").replace("_", "")
    return DTYPES.get(bare, bare if bare.isprintable() else None)


def dtype_of_kernel(name: str) -> str | None:
    """The dtype in the name of a reducing kernel; a kernel that only copies may name any."""
    found = KERNEL_DTYPE.search(name.replace("_", " ")) if REDUCED.search(name) else None
    if found is None:
        return None
    return dtype_of({"__nv_bfloat16": "bfloat16", "hip_bfloat16": "bfloat16"}.get(found[1], found[1]))


def elements_of(dims: Any, depth: int = 3) -> int | None:
    """Elements of all tensors in a shape of ``Input Dims``, or in a list of shapes; None if it has none."""
    if not isinstance(dims, list) or not dims or not depth or len(dims) > MOST_SIDES:
        return None
    if all(isinstance(side, int) and not isinstance(side, bool) and 0 <= side < LARGEST for side in dims):
        return math.prod(dims) if len(dims) <= MOST_DIMS else None
    parts = [elements_of(part, depth - 1) for part in dims if isinstance(part, list)]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def tensor_of(args: Any) -> tuple[int | None, str | None]:
    """Elements and dtype of the first input that is a tensor or a list of them; 1 element for a scalar."""
    dims, types = args.input_dims, args.input_types
    first = dims[0] if isinstance(dims, list) and dims else None
    kind = types[0] if isinstance(types, list) and types and isinstance(types[0], str) else None
    if not isinstance(first, list) or kind in ("", "Scalar"):
        return None, None
    dtype = None if kind == "TensorList" else dtype_of(kind)
    return (1 if not first and dtype else elements_of(first)), dtype


def tensors_of(args: Any) -> tuple[int | None, str | None]:
    """Elements of all inputs together, if all are tensors of one type, as in a coalesced all-reduce."""
    dims, types = args.input_dims, args.input_types
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types) or len(dims) < 2:
        return tensor_of(args)
    kinds = {kind if isinstance(kind, str) else "" for kind in types}
    if len(kinds) > 1 or kinds & {"", "Scalar", "TensorList"}:
        return tensor_of(args)
    return elements_of(dims), dtype_of(kinds.pop())


def collectives(kept: Recorded) -> list[Found]:
    """All collectives in the order in which they were submitted."""
    found = _of_kernels(kept) if kept.on_device else _of_threads(kept)
    return sorted(found, key=lambda one: (one.submitted, one.start))


class Host:
    """The host's records of collectives, looked up by time of submission."""

    def __init__(self, issues: Sequence[HostSpan]) -> None:
        self.spans = sorted(issues, key=lambda span: span.start)
        self.starts = [span.start for span in self.spans]

    def around(self, time: float) -> list[HostSpan]:
        """The spans that hold ``time``, the innermost first."""
        place = bisect_right(self.starts, time)
        return [span for span in reversed(self.spans[max(0, place - LONGEST_LOOK) : place]) if span.holds(time)]


def _of_kernels(kept: Recorded) -> list[Found]:
    submitted, host = launch_times(kept), Host(kept.issues)
    around: list[list[HostSpan]] = []
    issued: list[float | None] = []
    for kernel in kept.kernels:
        time = submitted.get(kernel.args.correlation)
        issued.append(time)
        around.append([] if time is None else host.around(time))
    _by_external_id(kept, around)
    _by_order(kept, around)
    _before_the_trace(kept.kernels, issued, around)
    rows = zip(kept.kernels, issued, around, strict=True)
    return [_collective(*row) for row in rows if row[1] != BEFORE]


def _before_the_trace(
    kernels: Sequence[HostSpan], issued: list[float | None], around: Sequence[Sequence[HostSpan]]
) -> None:
    """Mark kernels without a submission on record, ahead of all others: they were submitted before it began."""
    known = [kernel.start for kernel, time in zip(kernels, issued, strict=True) if time is not None]
    for place, kernel in enumerate(kernels):
        if known and issued[place] is None and not around[place] and kernel.start < min(known):
            issued[place] = BEFORE


def _by_external_id(kept: Recorded, around: list[list[HostSpan]]) -> None:
    """Match kernels without a recorded launch to the host's span with the same external id."""
    known = {span.args.external_id: span for span in kept.issues if span.args.external_id is not None}
    for place, kernel in enumerate(kept.kernels):
        span = known.get(kernel.args.external_id)
        if around[place] or span is None or span.start > kernel.start:
            continue
        if kind_of(kernel.name) in (None, kind_of(span.name), "send_recv"):
            around[place] = [span]


def _by_order(kept: Recorded, around: list[list[HostSpan]]) -> None:
    """Match kernels, if no launch is on record at all, to equally many annotations of their kind."""
    if any(around):
        return
    for kind in set(KINDS.values()):
        places = [place for place, kernel in enumerate(kept.kernels) if kind_of(kernel.name) == kind]
        noted = [span for span in kept.issues if ":" in span.name and "::" not in span.name]
        named = sorted((span for span in noted if kind_of(span.name) == kind), key=lambda span: span.start)
        if len(places) == len(named):
            places.sort(key=lambda place: kept.kernels[place].start)
            for place, span in zip(places, named, strict=True):
                around[place] = [span]


def _collective(kernel: HostSpan, issued: float | None, around: Sequence[HostSpan]) -> Found:
    told = [kernel, *around]
    size = _size(kernel, around)
    sequence = _said(told, lambda args: args.seq)
    return Found(
        _kind(kernel, around),
        kernel.start,
        kernel.end,
        issued if issued is not None else (around[0].start if around else None),
        size.elements if size else None,
        (size.dtype if size else None) or dtype_of_kernel(kernel.name),
        size.by if size else "",
        str(_said(told, lambda args: args.group_name) or ""),
        sequence if isinstance(sequence, int) else None,
        _group_size(_kind(kernel, around), told) or _said(told, lambda args: args.group_size),
        received=_received(_kind(kernel, around), told),
        bytes=_said(told, lambda args: args.in_bytes),
    )


def _received(kind: str, told: Sequence[HostSpan]) -> int | None:
    """Elements that this rank gets in an all-to-all; None if not recorded, and for other kinds."""
    if kind != "all_to_all":
        return None
    for span in told:
        if span.args.out_elements is not None:
            return int(span.args.out_elements)
        dims = span.args.input_dims
        if span.name.endswith(EXCHANGE) and isinstance(dims, list) and len(dims) > 1:
            return elements_of(dims[0])  # (output, input)
    return None


def _group_size(kind: str, told: Sequence[HostSpan]) -> int | None:
    """Ranks of the group of an all-gather or reduce-scatter: its larger side over its smaller; None if not recorded."""
    if kind not in ("all_gather", "reduce_scatter"):
        return None
    for span in told:
        sides: Sequence[int | None] = (span.args.in_elements, span.args.out_elements)
        if None in sides and span.name.endswith(BASES):
            dims = span.args.input_dims  # (output, input) of an operator that is given both
            sides = [elements_of(side) for side in dims[:2]] if isinstance(dims, list) and len(dims) > 1 else sides
        small, large = sorted(side or 0 for side in sides)
        if 0 < small < large and large % small == 0:
            return large // small
    return None


def _said(told: Sequence[HostSpan], what: Callable[[Any], Any]) -> Any:
    return next((what(span.args) for span in told if what(span.args) is not None), None)


def _kind(kernel: HostSpan, around: Sequence[HostSpan]) -> str:
    """The kind from arguments and annotations, before the kernel's name: an all-to-all's kernel is SendRecv."""
    named = [span.args.collective for span in (kernel, *around) if span.args.collective]
    named += [span.name for span in around if span.name != "record_param_comms"]
    kinds = [kind for kind in map(kind_of, named) if kind]
    return kinds[0] if kinds else kind_of(kernel.name) or "collective"


def _size(kernel: HostSpan, around: Sequence[HostSpan]) -> Size | None:
    for span, by in ((kernel, "kernel"), *((span, "host") for span in around)):
        if span.args.in_elements is not None:
            return Size(span.args.in_elements, dtype_of(span.args.dtype), by)
    for span in around:
        elements, dtype = tensor_of(span.args)
        if elements is not None:
            return Size(elements, dtype, "dims")
    return None


def _of_threads(kept: Recorded) -> list[Found]:
    """Collectives of libraries that use threads of the host: their annotations, each with its call."""
    found = []
    for kind in set(KINDS.values()):
        runs = [span for span in kept.issues if span.name.startswith(LIBRARY_THREAD) and kind_of(span.name) == kind]
        runs.sort(key=lambda span: span.start)
        found += [_run(kind, run, call) for run, call in _paired(runs, _calls(kept, kind, len(runs)))]
    return found


def _paired(runs: Sequence[HostSpan], calls: Sequence[HostSpan]) -> list[tuple[HostSpan, HostSpan | None]]:
    """Each run with the k-th call of its size, since threads may start out of order; by order if sizes differ."""
    if len(calls) != len(runs):
        return [(run, None) for run in runs]

    def keys(spans: Sequence[HostSpan]) -> list[tuple[int | None, int]]:
        sizes = [_input(span) for span in spans]
        return list(zip(sizes, places(sizes), strict=True))

    by_size = dict(zip(keys(calls), calls, strict=True))
    ran = keys(runs)
    return list(zip(runs, [by_size[key] for key in ran] if by_size.keys() == set(ran) else calls, strict=True))


def _input(span: HostSpan) -> int | None:
    """Elements that each rank puts in, of a run or of its call."""
    dims = span.args.input_dims
    if span.name.endswith(BASES) and isinstance(dims, list):
        return elements_of(dims[1]) if len(dims) > 1 else None
    return tensors_of(span.args)[0]


def _calls(kept: Recorded, kind: str, runs: int) -> list[HostSpan]:
    """The calls of these ``runs``; gloo runs a reduce-scatter as an all-reduce."""
    for prefix in ("c10d::", "_c10d_functional::"):
        named = [(kind_of(span.name), span) for span in kept.issues if span.name.startswith(prefix)]
        calls = [span for called, span in named if called == kind]
        if kind == "all_reduce" and len(calls) < runs:
            calls += [span for called, span in named if called == "reduce_scatter"]
        if calls:
            return sorted(calls, key=lambda span: span.start)
    return []


def _run(kind: str, run: HostSpan, call: HostSpan | None) -> Found:
    told = [run] if call is None else [run, call]
    read = tensors_of if kind == "all_reduce" else tensor_of
    elements, dtype = next((found for span in told if (found := read(span.args))[0] is not None), (None, None))
    dtype = dtype or next((said for span in told if (said := tensor_of(span.args)[1])), None)
    issued = min(call.start, run.start) if call else run.start
    called = kind if call is None else kind_of(call.name) or kind
    workers = _group_size(called, told)
    by = "dims" if elements else ""
    return Found(
        kind, run.start, run.end, issued, elements, dtype, by, "", None, workers, called,
        received=_received(kind, told), thread=run.thread,
    )  # fmt: skip
