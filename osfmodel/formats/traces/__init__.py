"""The nouns in a trace: the workload, the plan of its buckets, the cluster, and the measured steps.

All are of the rank that the others wait for, and of its usual steps (:mod:`formats.traces.usual`), so that the parts of
a step add up; times are medians over them. A gradient is ready for the job when the
last rank on the record has it. Computation is taken as it was: if collectives slow it down, it is longer
in the workload, and other collectives than those of gradients, which a plan cannot change, are part of its forward and
backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from osfmodel.entities.cluster import LIBRARIES, AlphaBeta, Cluster, Table
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError, OsfError
from osfmodel.entities.files.notation import written
from osfmodel.entities.measurement import UNKNOWN, Measurement
from osfmodel.entities.plan import Block, Bucket, Plan
from osfmodel.entities.trace import GradientReady, Step, Trace
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.traces.network import (
    arrivals_known,
    carried,
    filled,
    rising_means,
    seconds_per_byte,
    several_sizes,
    sharded_tables,
    wire_times_by_size,
)
from osfmodel.formats.traces.sharded import is_sharded, layers_of, sharded_plan
from osfmodel.formats.traces.usual import alike_steps, doubt, printable, source_of, usual_steps

SHAPES = "record with record_shapes=True"
ONE_SIZE = "of about one size only, so that time is taken to be in proportion to bytes"
CASTS = {"float16": "fp16", "bfloat16": "bf16"}
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class TracedLayer:
    """Data of a layer: ``ready`` is seconds since the step began, ``bucket`` the message that carries it.

    ``held`` are its bytes in memory if it is cast before it is sent, as hooks do; ``dtype`` is the type that is sent.
    ``grain`` is its kind if its name is made up.
    """

    name: str
    ready: float
    bytes: int
    dtype: str
    bucket: int | None
    held: int | None = None
    grain: str = ""


def workload_of(trace: Trace) -> Workload:
    """The workload of the rank that sets the pace, its layers in reverse ready order.

    A layer for each gradient whose size is known, else for each bucket, else one for all with 0 bytes; its conditions
    say which. Forward is all before backward, the gaps in which the device idles too, spread over the layers by their
    bytes; update is all after the last gradient was there and the last all-reduce had ended. Raises DataError for a
    trace without backward.
    """
    known = [(step, step.backward) for step in usual_steps(trace) if step.backward is not None]
    steps = [step for step, _ in known]
    if not steps:
        raise DataError("does not tell backward from the rest: record the CPU too, activities=[CPU, CUDA]")
    if is_sharded(trace):
        return _sharded_workload(trace, steps)
    pieces = _usual([_pieces_of_job(trace, step) for step in steps])
    forward = median(max(0.0, begin - step.start) for step, (begin, _) in known)
    ends = [median(end - step.start for step, (_, end) in known), *(piece.ready for piece in pieces)]
    update = median(max(0.0, step.end - _barrier(step, end)) for step, (_, end) in known)
    layers = _layers(pieces, forward, max(forward, *ends))
    source = source_of(trace, _grain(pieces, steps[0]))
    grains = {piece.grain for piece in pieces if piece.bytes}
    grain = grains.pop() if len(grains) == 1 else ""
    found = Workload(trace.name, tuple(layers), None, update, source, sent_as=_sent_as(pieces), grain=grain)
    computing = _computing(steps, found.compute_time)
    return replace(found, computing=computing, profiled_workers=trace.workers or 1, doubt=doubt(trace))


def _sharded_workload(trace: Trace, steps: Sequence[Step]) -> Workload:
    """The workload of groups of sharded parameters, which are its modules."""
    layers, update = layers_of(steps)
    source = source_of(trace, "a layer per parameter of each group, named by its module and its place there")
    found = Workload(trace.name, tuple(layers), None, update, source)
    time = found.forward_time + found.backward_time
    computing = _computing(steps, time * steps[0].micro_batches)
    return replace(found, computing=computing, profiled_workers=trace.workers or 1, doubt=doubt(trace))


def _computing(steps: Sequence[Step], time: float) -> float | None:
    """The part of ``time``, a workload's compute time, in which the device computed; None if not recorded."""
    return min(1.0, median(step.compute_time for step in steps) / time) or None


def _barrier(step: Step, end: float) -> float:
    """Time at which backward, whose end is given, and the gradients' all-reduces had ended."""
    return max([end, *(one.end for one in step.reductions), *(one.ready for one in step.gradients)])


def _pieces(step: Step, host_computes: bool) -> list[TracedLayer]:
    """The layers that the step becomes in a workload, in ready order."""
    sizes = [one.bytes for one in step.reductions]
    messages = carried(step)
    if all(gradient.bytes is not None for gradient in step.gradients) and (messages or (step.gradients and not sizes)):
        found = _of_gradients(step, messages)
    elif sizes and None not in sizes:
        found = _of_buckets(step, messages, host_computes)
    else:
        return []
    return _in_order(found)


def _pieces_of_job(trace: Trace, step: Step) -> list[TracedLayer]:
    """The layers that the step becomes in a workload, each ready when the last rank has its gradient."""
    mine = _pieces(step, trace.pace.host_computes)
    for rank in trace.ranks:
        for other in (one for one in rank.steps if one.number == step.number and one is not step):
            theirs = _pieces(other, rank.host_computes)
            if [piece.bytes for piece in theirs] == [piece.bytes for piece in mine]:
                ahead = other.start - step.start
                mine = [replace(a, ready=max(a.ready, b.ready + ahead)) for a, b in zip(mine, theirs, strict=True)]
    return mine


def _of_gradients(step: Step, messages: Sequence[Sequence[GradientReady]] | None) -> list[TracedLayer]:
    """A layer for each gradient; if there are messages, gradients that none carries have 0 bytes."""
    where = {id(one): place for place, message in enumerate(messages or ()) for one in message}
    found = []
    for number, one in enumerate(step.gradients):
        bucket = where.get(id(one))
        sent = one.bytes if bucket is not None or messages is None else 0
        ready = one.ready if bucket is None else min(one.ready, step.reductions[bucket].start)
        name, grain = (one.name, "") if one.name else (f"gradient{number}", "gradient")
        piece = TracedLayer(name, ready - step.start, sent or 0, one.dtype or "", bucket, grain=grain)
        found.append(piece if bucket is None else _cast(piece, one, step.reductions[bucket].dtype))
    return found


def _cast(piece: TracedLayer, one: GradientReady, dtype: str | None) -> TracedLayer:
    """The layer with the size and dtype that its message has."""
    if dtype is None or one.elements is None or dtype == one.dtype:
        return piece
    return replace(piece, bytes=one.elements * element_bytes(dtype), dtype=dtype, held=one.bytes)


def _sent_as(pieces: Sequence[TracedLayer]) -> str:
    """``fp16`` or ``bf16`` if every message is cast to it; else ""."""
    casts = {piece.dtype if piece.held is not None else "" for piece in pieces if piece.bytes}
    return CASTS.get(casts.pop(), "") if len(casts) == 1 else ""


def _of_buckets(
    step: Step, messages: Sequence[Sequence[GradientReady]] | None, host_computes: bool
) -> list[TracedLayer]:
    """A layer for each bucket, ready with its content."""
    found = []
    for number, one in enumerate(step.reductions):
        ready = filled(one, messages[number] if messages else (), host_computes)
        name, size = f"bucket{number}", one.bytes or 0
        found.append(TracedLayer(name, ready - step.start, size, one.dtype or "", number, grain="bucket"))
    return found


def _in_order(pieces: Iterable[TracedLayer]) -> list[TracedLayer]:
    """Layers in order, with ready times that never decrease."""
    found: list[TracedLayer] = []
    for piece in pieces:
        before = found[-1].ready if found else 0.0
        found.append(replace(piece, ready=max(piece.ready, before)))
    return found


def _usual(rows: Sequence[list[TracedLayer]]) -> list[TracedLayer]:
    """The median over those steps that are cut into the same pieces as most."""
    shapes = [tuple(replace(piece, ready=0.0) for piece in row) for row in rows]
    usual = Counter(shapes).most_common(1)[0][0]
    alike = [row for row, shape in zip(rows, shapes, strict=True) if shape == usual]
    return [replace(row[0], ready=median(piece.ready for piece in row)) for row in zip(*alike, strict=True)]


def _layers(pieces: Sequence[TracedLayer], forward: float, end: float) -> list[Layer]:
    """Layers from input to output; computation after the last gradient is a layer without one, at the input."""
    total = sum(piece.bytes for piece in pieces)
    layers, before = [], forward
    for piece in pieces:
        share = forward * piece.bytes / total if total else forward / len(pieces)
        ready = max(piece.ready, before)
        layers.append(Layer(piece.name, share, ready - before, piece.bytes, piece.dtype, held_bytes=piece.held))
        before = ready
    if end - before > ROUNDING or not layers:
        layers.append(Layer("input", 0.0 if layers else forward, end - before, 0))
    return layers[::-1]


def _grain(pieces: Sequence[TracedLayer], step: Step) -> str:
    if not pieces:
        return f"one layer: sizes of gradients are not recorded, so that none are sent; {SHAPES}, or give --model"
    if pieces[0].grain != "bucket":
        return "a layer per gradient"
    if step.gradients and all(one.elements is not None for one in step.gradients):
        return "a layer per bucket, since the gradients on the record do not make up the messages"
    return f"a layer per bucket, since sizes of single gradients are not recorded; {SHAPES} for them"


def plan_of(trace: Trace, workload: Workload) -> Plan:
    """The buckets that were really sent, as a plan for the workload of the same trace.

    On one channel, though all-reduces may have been in flight together: :func:`cluster_of` has the time for which each
    had the network. Raises DataError where nothing was sent, or sizes are not known.
    """
    if is_sharded(trace):
        plan = sharded_plan(trace, workload.name, workload.layers)
        plan.require_valid(workload)
        return plan
    step = next((step for step in usual_steps(trace) if step.backward is not None), None)
    pieces = _pieces(step, trace.pace.host_computes) if step else []
    if step is None or not step.reductions:
        raise DataError("holds no all-reduce of gradients, so no buckets")
    if not pieces:
        raise DataError(f"the buckets have no sizes: {SHAPES}, or give --ddp-logging or --model")
    sizes = {layer.name: layer.gradient_bytes for layer in workload.layers}
    messages: dict[int, list[Block]] = {}
    for piece in pieces:
        if piece.bucket is not None and piece.bytes:
            messages.setdefault(piece.bucket, []).append(Block(piece.name, 0, sizes.get(piece.name, piece.bytes)))
    buckets = tuple(Bucket(tuple(messages[place])) for place in sorted(messages))
    plan = Plan(workload.name, buckets)
    plan.require_valid(workload)
    return plan


def cluster_of(trace: Trace) -> Cluster:
    """The network time of collectives, by bytes: means over the steps.

    It is the time for which all ranks were in one, shared evenly with others in flight; from one rank of several the
    time that it was in it, waits for others included. All-reduces of anything but gradients are left out. No message
    takes longer than a larger one (:func:`formats.traces.network.rising_means`). All-reduces of about one size do not
    make a table: they become a line through them and through the origin, which its conditions say. Raises DataError
    where no size is known.
    """
    times = sorted(wire_times_by_size(trace).items())
    tables = [
        Table(workers, tuple(sorted(found)), rising_means([found[size] for size in sorted(found)]), kind)
        for (kind, workers), found in times
        if several_sizes(found)
    ]
    lines = [
        AlphaBeta(workers, 0.0, seconds_per_byte(found))
        for (kind, workers), found in times
        if kind == "all_reduce" and not several_sizes(found)
    ]
    if is_sharded(trace):
        tables, lines = sharded_tables(dict(times), trace.workers or 1), []
    if not any(table.collective == "all_reduce" for table in tables):
        tables = []  # what is left could not price a gradient
    if not tables and not lines:
        raise DataError(f"holds no all-reduce of a size that is known: {SHAPES}, or use osf bench")
    waits = "without waits for others" if arrivals_known(trace.pace) else "waits for other ranks are in them"
    averaged = "smaller ones that took longer are averaged" if tables else ONE_SIZE
    if is_sharded(trace):
        averaged += "; an all-reduce between all ranks, of which there was none, as a reduce-scatter and an all-gather"
    backend = trace.pace.backend
    each, most = gpus_per_node(trace), max(one.workers for one in tables or lines)
    placed = f", {each} GPUs in a node as its ranks used" if each else ""
    return Cluster(
        name=trace.name,
        cost_model="tabulated" if tables else "hockney",
        gpus_per_node=each or 1,
        nodes=-(-most // (each or 1)),
        fits=() if tables else tuple(lines),
        tables=tuple(tables),
        library=backend if backend in LIBRARIES else "",
        source=source_of(trace, f"collectives of training, each alone on the network, {waits}, {averaged}{placed}"),
    )


def gpus_per_node(trace: Trace) -> int | None:
    """GPUs of each node that the job used, 2 or more; None if that is not certain.

    It is where all ranks are on the record, as many of each host, and each on a GPU of another number than the others
    there: hosts of one name, or of none, would have equal numbers. Collectives of some of the ranks only may be of one
    host or of several.
    """
    ranks = trace.ranks
    if any(one.workers not in (None, len(ranks)) for step in trace.pace.steps for one in step.collectives):
        return None
    places = {(rank.host, rank.gpu) for rank in ranks if rank.gpu}
    counts = set(Counter(rank.host for rank in ranks).values())
    if len(ranks) < (trace.workers or 1) or len(places) < len(ranks) or len(counts) > 1:
        return None
    (each,) = counts
    return each if each > 1 else None


def measurement_of(trace: Trace) -> Measurement:
    """The step times of the rank that sets the pace, with the plan that was sent if it is known.

    Of all that sent what most did, of which the other nouns take the middle third.
    """
    rank, steps = trace.pace, usual_steps(trace)
    conditions = {
        "framework": "pytorch",
        "library": rank.backend or "not stated",
        "device": rank.device or "not stated",
    }
    if steps[0].micro_batches > 1:
        conditions["micro_batches"] = str(steps[0].micro_batches)
    sizes = [one.bytes for one in steps[0].reductions]
    if sizes and None not in sizes:
        conditions["buckets"] = " ".join(str(size) for size in sizes)
    try:
        workload = workload_of(trace)
        conditions["sent"] = written(plan_of(trace, workload), workload)
    except OsfError:
        pass  # what is missing is said where the workload and the plan are asked for
    samples = tuple(step.time for step in alike_steps(trace))
    told = tuple((name, printable(value)) for name, value in conditions.items())
    source = source_of(trace, "times of steps on the device")
    plan = "ddp" if any(step.ddp for step in steps) else UNKNOWN
    return Measurement(trace.name, trace.name, plan, trace.workers or 1, samples, 0, told, source)
