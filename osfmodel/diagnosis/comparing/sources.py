"""Read any file that can be compared: find out what it is, and make a Reading of it.

Of a profiler's trace these are its steps, causes, collectives by process group, and modules; step times are read from
plain text, CSV or JSON lines: a number a line, or a column of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from errno import ENOENT
from pathlib import Path
from statistics import fmean
from typing import Any

from osfmodel.cost import COST_MODELS
from osfmodel.cost.clusters import load_cluster
from osfmodel.diagnosis.comparing.readings import (
    STEP,
    CollectiveUse,
    Reading,
    Timed,
    cluster_reading,
    holds_prediction,
    log_reading,
    modules_of,
    prediction_reading,
    runs_reading,
    workload_reading,
)
from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.diagnosis.explanation import COMPUTE, UNEXPLAINED, Explanation
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import show_bytes
from osfmodel.entities.errors import DataError, OsfError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.files.documents import parse_json
from osfmodel.entities.files.measurements import decode_measurements, load_measurements
from osfmodel.entities.files.profiles import plain_text
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.timeline import common, length, without
from osfmodel.entities.trace import Step, Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats import IMPORT_FORMATS, format_of, import_content, import_job, is_job, load_trace
from osfmodel.formats.reading import log_of
from osfmodel.formats.source_text import Hints, Text, is_number, silent, stem
from osfmodel.formats.streams.archives import unpacked
from osfmodel.formats.traces import workload_of
from osfmodel.formats.traces.usual import step_times, usual_steps, with_shared_steps

COLUMN = re.compile(
    r"(?:step|iteration|iter|train|batch)?[ _]?(?:time|duration|seconds|latency)(?:[ _(]*(s|ms|us|ns)\)?)?"
)
"""Names of columns of step times, with their unit; in seconds without one."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
RUN = ("run", "repeat")
"""Names of a column that tells runs apart."""
LONGEST = 1e6
"""Seconds from which a number is taken for a time of day."""
FORMS = "a number a line, a CSV column or JSON-lines field such as step_time_s (_ms, _us)"


def times_reading(text: Text, name: str) -> Reading:
    """The step times of a text file; a column ``run`` or ``repeat`` tells several runs apart.

    Raises DataError, with the line, for anything but step times above zero.
    """
    head = next((line for _, line in text.lines() if line.strip() and not line.startswith("#")), "")
    if head.lstrip().startswith("{"):
        rows = _in_json(text)
    elif is_number(head) or ("," not in head and "\t" not in head and ";" not in head):
        rows = _in_lines(text)
    else:
        rows = _in_table(text)
    runs: dict[str, list[float]] = {}
    for line, run, time in rows:
        if not 0 < time < LONGEST:
            raise text.fault(line, f"{time:g}", "is not a step time: seconds above zero, and no time of day")
        runs.setdefault(run, []).append(time)
        text.limit(line, sum(map(len, runs.values())) if line % 4096 == 0 else 0)
    if not runs:
        raise DataError(f"has no step times: give {FORMS}")
    return Reading(name, "times", (Timed("step", tuple(StepSeries(tuple(times)) for times in runs.values())),))


def _in_lines(text: Text) -> Iterator[tuple[int, str, float]]:
    """A number a line; the first line may name the unit, as ``step_time_ms`` does; # begins a comment."""
    scale = None
    for line, content in text.lines():
        value = content.partition("#")[0].strip()
        if not value:
            continue
        if scale is None:
            scale = _scale(value.lower())
            if scale is not None:
                continue
            scale = 1.0
        if not is_number(value):
            raise text.fault(line, content, f"is not a step time; expected {FORMS}")
        yield line, "", float(value) * scale


def _scale(name: str) -> float | None:
    """Seconds per unit of a column of step times; None for any other column."""
    match = COLUMN.fullmatch(name.strip().strip('"'))
    return None if match is None else UNITS[match[1] or "s"]


def _chosen(names: Mapping[str, Any]) -> tuple[str, float] | None:
    """The column of step times, and its unit: the first whose name begins with step, iteration or the like."""
    found = [(name, scale) for name in names if (scale := _scale(name.lower())) is not None]
    return min(found, key=lambda one: one[0].lower().startswith(("time", "duration", "seconds")), default=None)


def _in_table(text: Text) -> Iterator[tuple[int, str, float]]:
    chosen = None
    for line, row in text.rows():
        chosen = chosen or _chosen(row)
        if chosen is None:
            raise text.fault(1, ", ".join(row), "has no column of step times, such as step_time_s or step_time_ms")
        column, scale = chosen
        yield line, _run(row), text.number(line, row[column]) * scale


def _in_json(text: Text) -> Iterator[tuple[int, str, float]]:
    """An object a line; those without a step time, such as a first one with the settings, are left out."""
    for line, content in text.lines():
        if not content.strip():
            continue
        try:
            row = parse_json(content.encode("utf-8", "surrogatepass"))
        except DataError:
            raise text.fault(line, content, "is not a JSON object; expected " + FORMS) from None
        if not isinstance(row, dict):
            raise text.fault(line, content, "is not a JSON object")
        chosen = _chosen(row)
        if chosen is None or row[chosen[0]] is None:
            continue
        value = row[chosen[0]]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise text.fault(line, content, f"{chosen[0]} is not a number")
        try:
            yield line, _run(row), float(value) * chosen[1]
        except OverflowError:
            raise text.fault(line, content, f"{chosen[0]} is no step time") from None


def _run(row: Mapping[str, Any]) -> str:
    return next((str(row[name]) for name in RUN if name in row), "")


def trace_reading(trace: Trace, name: str) -> Reading:
    """The steps of a job, in the mean over its ranks; its causes and collectives are those of usual steps.

    Raises DataError as ``explain_trace``.
    """
    trace = with_shared_steps(trace)
    found = explain_trace(trace)
    times = step_times(trace)
    series = StepSeries(tuple(times[number] for number in sorted(times)))
    return Reading(
        name,
        "trace",
        (Timed(STEP, (series,), parts=parts_of_step(found)),),
        collectives=tuple(_collectives(found)),
        modules=_modules(trace),
        facts=_facts(trace, found),
    )


def parts_of_step(one: Explanation) -> dict[str, float]:
    """Seconds of a usual step by cause, computation that is left, and what the replay misses; they add up to it."""
    return {**one.gains, COMPUTE: one.left, UNEXPLAINED: one.missed}


def _collectives(found: Explanation) -> Iterator[CollectiveUse]:
    """The collectives of each kind and process group in a usual step, as an explanation has them."""
    for row in found.collectives:
        kind = row.kind if row.backward is None else f"{row.kind}, {'backward' if row.backward else 'forward'}"
        yield CollectiveUse(kind, row.group, row.size or 0, row.count, row.bytes, row.transfer, row.bandwidth)


def _modules(trace: Trace) -> dict[str, float]:
    """Seconds of computation by module; empty for a trace without named parameters or modules."""
    uses = _used(trace)
    if uses:
        return uses
    try:
        return modules_of(workload_of(trace))
    except OsfError:
        return {}


def _used(trace: Trace) -> dict[str, float]:
    """Seconds of computation in each group of sharded parameters, both passes: means over usual steps of one rank."""
    steps = usual_steps(trace)
    seconds: dict[str, float] = {}
    for step in steps:
        for module, time in computation_of_uses(step):
            seconds[module] = seconds.get(module, 0.0) + time / len(steps)
    return seconds


def computation_of_uses(step: Step) -> Iterator[tuple[str, float]]:
    """(module, seconds) of computation in each use of sharded parameters; inside several in that of the shortest."""
    left = step.compute
    for use in sorted(step.uses, key=lambda one: one.end - one.start):
        mine = ((use.start, use.end),)
        yield use.module or "root", length(common(left, mine))
        left = without(left, mine)


def _facts(trace: Trace, found: Explanation) -> Mapping[str, str]:
    sent = [row.bytes for row in found.buckets if row.gradients]
    sizes = [size for size in sent if size is not None]
    told = f", {show_bytes(sum(sizes))}, the largest {show_bytes(max(sizes))}" if sizes else ""
    pace = trace.pace
    return {
        "workers": str(found.workers),
        "ranks traced": str(len(trace.ranks)),
        "backend": pace.backend or "not stated",
        "device": pace.device or "not stated",
        "gradient buckets": f"{len(sent)}{told}",
        "micro-batches": f"{fmean(step.micro_batches for step in usual_steps(trace)):g}",
    }


Load = Callable[[Sequence[str]], Trace]
"""Load the trace of a job from its files."""
Source = str | os.PathLike[str] | Trace
OWN = "osfmodel"
"""Name of the format of our own files."""


def _load(paths: Sequence[str]) -> Trace:
    return load_trace([Path(path) for path in paths])


def reading_of(source: Source, load: Load = _load, tell: Callable[[str], None] = silent) -> Reading:
    """The content of a file, a folder or a tar of traces, a Trace, or a bundled profile by its name.

    ``tell`` receives oddities of other tools' files that are not faults. Raises DataError for a file without times.
    """
    if isinstance(source, Trace):
        return trace_reading(source, source.name)
    name, path = os.fspath(source), Path(source)
    if not path.exists():
        return _bundled(name)
    form = format_of(path)
    if form is not None and IMPORT_FORMATS[form].trace is not None:
        return trace_reading(load([name]), name)
    if form != OWN and is_job([path], form):
        return _imported(name, import_job([path], Hints(stem(name)), tell, form=form))
    return profiles.read(path, lambda content: _decoded(name, form, unpacked(content), tell))


def _bundled(name: str) -> Reading:
    """The reading of a bundled profile or of a cluster in words. Raises DataError if there is none of that name."""
    if name.partition(":")[0] in COST_MODELS and ":" in name:
        return cluster_reading(load_cluster(name), name)
    if profiles.files_called(name, "measurements"):
        return runs_reading(load_measurements(name), name)
    if profiles.files_called(name, "cluster"):
        return cluster_reading(load_cluster(name), name)
    if profiles.files_called(name, "workload"):
        return workload_reading(profiles.load_workload(name), name)
    missing = FileNotFoundError(ENOENT, "no such file or folder, and no bundled profile has that name")
    raise DataError(f"{name} cannot be read: {profiles.reason(Path(name), missing)}")


def _decoded(name: str, form: str | None, content: bytes, tell: Callable[[str], None]) -> Reading:
    first, _, rest = content.strip().partition(b"\n")
    lines = rest and first.rstrip().endswith(b"}")  # each line is an object of its own
    if form == OWN and not lines:
        return _own(name, content)
    if form is not None and (log := IMPORT_FORMATS[form].log) is not None:
        return log_reading(log_of(log, content, name, lambda said: tell(f"{name}: {said}")), name)
    if form is not None and form != OWN:
        return _imported(name, import_content(content, name, Hints(stem(name)), form, tell))
    try:
        text = plain_text(content)
    except UnicodeDecodeError:
        raise DataError("is neither text nor a trace that osfmodel reads") from None
    return times_reading(Text(name, text), name)


def _own(name: str, content: bytes) -> Reading:
    document: dict[str, Any] = documents.parse_object(content)
    if holds_prediction(document):
        return prediction_reading(document, name)
    kind = document.get("kind") or next((kind for kind, key in documents.KINDS.items() if key in document), "document")
    if kind == "measurements":
        return runs_reading(decode_measurements(content), name)
    if kind == "cluster":
        return cluster_reading(documents.decode_cluster(content), name)
    if kind == "workload":
        return workload_reading(documents.decode_workload(content), name)
    raise DataError(
        f"is a file of osfmodel, of kind {kind!s:.40}, without times: give traces, runs (osf run), predictions "
        "(osf predict, osf tune or osf scale with --format json), clusters, workloads or step times"
    )


def _imported(name: str, nouns: Sequence[object]) -> Reading:
    """The runs in another tool's file, else its cluster, else its workload."""
    runs = [one for one in nouns if isinstance(one, Measurement)]
    if runs:
        return runs_reading(runs, name)
    for noun in nouns:
        if isinstance(noun, Cluster):
            return cluster_reading(noun, name)
        if isinstance(noun, Workload):
            return workload_reading(noun, name)
    raise DataError("holds no times")
