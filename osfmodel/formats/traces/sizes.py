"""Sizes of collectives and gradients that a trace lacks: from its own gradients, DDP's log, or the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import DataError
from osfmodel.entities.trace import Collective, GradientReady, Step, Trace
from osfmodel.entities.workload import Gradients
from osfmodel.formats.source_text import Hints, Text, parse, require
from osfmodel.formats.traces.buckets import carried

Sized = Callable[[Step], Step]


def sized(trace: Trace, hints: Hints) -> Trace:
    """The trace with the sizes that it lacks, as far as they can be found.

    A model gives its gradients in ready order, DDP's log its buckets; both must have as many as the trace has in some
    step. Raises DataError, with both counts, where they do not.
    """
    if hints.model is not None:
        gradients = hints.model.gradients
        _require(
            trace,
            lambda step: len(gradients) in (len(step.gradients), len(step.reductions)),
            f"the model {hints.model.name!r} has {len(gradients)} gradients",
        )
        trace = _mapped(trace, _by_model(gradients))
    if hints.ddp_logging is not None:
        try:
            sizes, dtype = _logged(hints.ddp_logging)
        except DataError as error:
            raise DataError(f"{hints.ddp_logging.file}: {error}") from None
        _require(
            trace,
            lambda step: len(step.reductions) == len(sizes),
            f"{hints.ddp_logging.file}: DDP's log has {len(sizes)} buckets",
        )
        trace = _mapped(trace, _by_buckets(sizes, dtype))
    return _mapped(trace, _by_gradients)


def _mapped(trace: Trace, change: Sized) -> Trace:
    ranks = [replace(rank, steps=tuple(map(change, rank.steps))) for rank in trace.ranks]
    return replace(trace, ranks=tuple(ranks))


def _require(trace: Trace, fits: Callable[[Step], bool], told: str) -> None:
    """Raise DataError if no step fits what was given, whether sizes are known already or not."""
    if not any(fits(step) for rank in trace.ranks for step in rank.steps):
        step = trace.ranks[0].steps[-1]
        seen = f"{len(step.reductions)} all-reduces of gradients and {len(step.gradients)} gradients"
        raise DataError(f"{told}, a step of the trace {trace.name!r} {seen}: leave it out, or give one of that run")


def _resized(step: Step, sizes: Sequence[tuple[int, str]], by: str) -> Step:
    """The step with these elements and dtypes for reductions that have none."""
    known = {id(one): size for one, size in zip(step.reductions, sizes, strict=True)}

    def changed(one: Collective) -> Collective:
        if id(one) not in known or one.elements is not None:
            return one
        elements, dtype = known[id(one)]
        return replace(one, elements=elements, dtype=one.dtype or dtype, sized_by=by)

    return replace(step, collectives=tuple(map(changed, step.collectives)))


def _by_buckets(sizes: Sequence[int], dtype: str) -> Sized:
    """Sizes for a step with as many all-reduces of gradients as buckets, in the order in which they are sent."""

    def change(step: Step) -> Step:
        if len(step.reductions) != len(sizes):
            return step
        kinds = [one.dtype or dtype for one in step.reductions]
        known = [(size // element_bytes(kind), kind) for size, kind in zip(sizes, kinds, strict=True)]
        return _resized(step, known, "ddp-logging")

    return change


def _by_model(gradients: Gradients) -> Sized:
    """Sizes by gradients in ready order; if autograd's are not recorded, one all-reduce for each."""
    elements = [size // element_bytes(dtype) for size, dtype in zip(gradients.sizes, gradients.dtypes, strict=True)]
    known = list(zip(elements, gradients.dtypes, strict=True))

    def change(step: Step) -> Step:
        if len(step.gradients) == len(known):
            rows = zip(step.gradients, gradients.names, known, strict=True)
            step = replace(step, gradients=tuple(_named(*row) for row in rows))
            return _by_gradients(step, "model")
        return _resized(step, known, "model") if len(step.reductions) == len(known) else step

    return change


def _named(one: GradientReady, name: str, size: tuple[int, str]) -> GradientReady:
    """The gradient with its name, if its size is the same or unknown."""
    if one.elements is not None and one.elements != size[0]:
        return one
    return replace(one, name=name, elements=size[0], dtype=one.dtype or size[1])


def _by_gradients(step: Step, by: str = "gradients") -> Step:
    """The step with sizes for all-reduces from the gradients that they carry."""
    if all(one.elements is not None for one in step.reductions):
        return step
    messages = carried(step)
    if messages is None or any(one.elements is None or one.dtype is None for message in messages for one in message):
        return step
    sizes = [(sum(one.elements or 0 for one in message), message[0].dtype or "") for message in messages]
    return _resized(step, sizes, by)


def _logged(text: Text) -> tuple[list[int], str]:
    """Bytes of the buckets in the order in which they are sent, and their dtype."""
    log = parse(text)
    sizes = [text.whole(1, size) for size in require(text, log, "rebuilt_bucket_sizes", str).split(",") if size.strip()]
    if not sizes:
        raise DataError(f"{text.file}: names no buckets: log after a few steps, when DDP has rebuilt them")
    written = str(log.get("dtypes", "float")).partition(",")[0].strip()
    return sizes, {"half": "float16", "double": "float64", "bfloat16": "bfloat16"}.get(written, "float32")
