"""The content of a file as ``osf compare`` sees it: things with times, and the parts that they are made of.

Here osfmodel's own nouns are read (runs, clusters, workloads), results of its commands (step times without noise), and
the logs of trainers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osfmodel.cost import cost_of, worker_counts
from osfmodel.diagnosis.comparing.statistics import StepSeries
from osfmodel.entities.cluster import COLLECTIVES, Cluster
from osfmodel.entities.display import brief, how_many, show_bytes, show_time
from osfmodel.entities.errors import CostError, DataError, UsageError, require_count, require_name, require_time
from osfmodel.entities.lookup import require
from osfmodel.entities.measurement import OF_ONE_TURN, Measurement
from osfmodel.entities.modules import module_of
from osfmodel.entities.workload import Workload
from osfmodel.formats.collectives import factor
from osfmodel.formats.trainers import LoggedRun

STEPS, EXACT, PAIRS, PRICES = "steps", "exact", "pairs", "prices"
"""Ways to compare times: repeated steps with noise; predictions without any; measured times by size; prices by size."""
BY_SIZE = (PAIRS, PRICES)
COMPARABLE: Mapping[str, str] = {
    "trace": "profiler traces of a job",
    "runs": "measured runs",
    "times": "step times",
    "rates": "rates of training without the batch of a step",
    "prediction": "predictions",
    "cluster": "prices of collectives",
    "workload": "the computation of a workload",
}
"""Kinds of content that can be compared, each with its own, and what they hold."""
OF_STEPS = ("runs", "times", "prediction")
"""Kinds that are compared with each other too, by the one step that each file has."""
STEP = "step"
"""Name of the step of a job that has no other."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A thing with a time: the step of a job under a plan, a predicted step, a collective over a range of sizes.

    name:  tells it from others of the same file, and is the same in another file
    runs:  its times, by run; of BY_SIZE those of a single run, one for each of ``sizes``
    how:   STEPS, EXACT, PAIRS or PRICES
    parts: seconds of the parts that a usual step is made of, by cause; empty if not known
    sizes: bytes of the collectives of BY_SIZE
    band:  of a prediction, seconds from which and to which its error band reaches
    """

    name: str
    runs: tuple[StepSeries, ...]
    how: str = STEPS
    parts: Mapping[str, float] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    band: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        require_name(self.name, "the name of what is compared")
        if not self.runs:
            raise DataError(f"{self.name}: has no times")
        if self.how in BY_SIZE and len(self.sizes) != len(self.runs[0].times):
            raise DataError(f"{self.name}: needs a time for each of its {how_many(len(self.sizes), 'size')}")

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {how_many(len(self.runs), 'run')}, {show_time(self.runs[0].median)}")


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """Collectives of one kind in one process group, those of a step or of one size.

    kind:      ``all_reduce``, ``broadcast`` ...; all-gathers of sharded parameters with their pass
    group:     the process group, as the trace names it; "" if it does not
    workers:   ranks of the group; 0 if unknown
    count:     collectives in a step, the mean over its usual steps
    bytes:     input of each rank, of all of them; None if the trace does not say. Of a cluster the size as ``cost_of``
               has it: of an all-gather that of its result
    time:      seconds that they took, in the mean over the ranks; waits for other ranks left out where they are known
    bandwidth: bus bandwidth in bytes/s, as nccl-tests defines it; None if bytes or workers are not known
    """

    kind: str
    group: str
    workers: int
    count: float
    bytes: float | None
    time: float
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        require_name(self.kind, "the kind of a collective")
        require_count(self.workers, "workers of a process group")
        require_time(self.time, f"the time of {self.kind}")

    def __repr__(self) -> str:
        return brief(self, f"{self.count:g} {self.kind}, {show_time(self.time)}")


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of a file, as far as it can be compared.

    name:        of the file
    kind:        a key of COMPARABLE
    subjects:    things with times; at least one
    collectives: of a trace those of a usual step, of a cluster those of each size
    modules:     seconds of computation of a step, by module; empty if the file does not tell
    facts:       conditions, such as the number of workers: differences are listed
    """

    name: str
    kind: str
    subjects: tuple[Timed, ...]
    collectives: tuple[CollectiveUse, ...] = ()
    modules: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.subjects:
            raise DataError(f"{self.name}: holds no times to compare")
        require(self.kind, COMPARABLE, "kind of content")
        names = [one.name for one in self.subjects]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{self.name}: holds {name} twice: give a file for each")

    def __repr__(self) -> str:
        return brief(self, f"{self.name}: {self.kind} of {', '.join(one.name for one in self.subjects)}")


def modules_of(workload: Workload) -> dict[str, float]:
    """Seconds of forward and backward of each module of a workload, in forward order; {} if it has one row for all."""
    seconds: dict[str, float] = {}
    for layer in workload.layers:
        module = module_of(layer.name)
        seconds[module] = seconds.get(module, 0.0) + layer.forward_time + layer.backward_time
    return seconds if len(workload.layers) > 1 else {}


SIZES = tuple(4**power for power in range(4, 16))
"""Bytes of the collectives that are compared: 256 B to 1 GiB."""
LARGE = 2**20
"""Bytes from which a collective is compared as a large one, of which bandwidth decides."""
MOST_WORKERS = 1024
"""Largest worker count at which clusters are compared that can price any."""


def runs_reading(runs: Sequence[Measurement], name: str) -> Reading:
    """The set-ups of a file of runs, each with its repeats. Raises DataError if none has step times."""
    timed = [run for run in runs if run.samples]
    if not timed:
        raise DataError(f"{name}: has no step times, only peaks of memory")
    shared = _shared(timed)
    varied = sorted({key for run in timed for key, _ in run.shared_conditions} - set(shared))
    fields = [one for one in ("workload", "cluster") if len({getattr(run, one) for run in timed}) > 1]
    found: dict[str, list[StepSeries]] = {}
    for run in timed:
        told = [getattr(run, one) for one in fields]
        conditions = dict(run.shared_conditions)
        told += [f"{key} {conditions[key]}" for key in varied if key in conditions]
        label = ", ".join([run.plan, *told, f"{run.workers} workers"])
        found.setdefault(label, []).append(StepSeries(run.samples, run.deviation))
    facts = {one: getattr(timed[0], one) for one in ("workload", "cluster") if one not in fields}
    subjects = tuple(Timed(label, tuple(series)) for label, series in found.items())
    return Reading(name, "runs", subjects, facts={**facts, **shared})


def _shared(runs: Sequence[Measurement]) -> dict[str, str]:
    """Conditions that all runs state alike, without those of single turns."""
    pairs = set(runs[0].shared_conditions).intersection(*(run.shared_conditions for run in runs))
    return {key: value for key, value in runs[0].shared_conditions if (key, value) in pairs and key not in OF_ONE_TURN}


def cluster_reading(cluster: Cluster, name: str) -> Reading:
    """The prices of a cluster: each collective between each number of workers, small sizes and large ones apart."""
    rows = [use for workers in _counts(cluster) for kind in COLLECTIVES for use in _prices(cluster, workers, kind)]
    groups: dict[str, list[CollectiveUse]] = {}
    for use in rows:
        side = "from" if (use.bytes or 0) >= LARGE else "below"
        groups.setdefault(f"{use.kind}, {use.workers} workers, {side} {show_bytes(LARGE)}", []).append(use)
    measured = bool(cluster.tables or cluster.fits)
    subjects = tuple(
        Timed(
            label,
            (StepSeries(tuple(use.time for use in uses)),),
            PAIRS if measured else PRICES,
            sizes=tuple(int(use.bytes or 0) for use in uses),
        )
        for label, uses in groups.items()
    )
    facts = {"cost model": cluster.cost_model, "library": cluster.library or "not stated"}
    return Reading(name, "cluster", subjects, tuple(rows), facts=facts)


def _counts(cluster: Cluster) -> Sequence[int]:
    """The worker counts that it was measured with; of one that can price any, powers of two up to its capacity."""
    known = worker_counts(cluster)
    most = min(cluster.capacity or MOST_WORKERS, MOST_WORKERS)
    return known or [2**power for power in range(1, most.bit_length()) if 2**power <= most]


def _prices(cluster: Cluster, workers: int, kind: str) -> Iterator[CollectiveUse]:
    """The price of each of SIZES within the measured range; none where the cluster cannot price such a collective."""
    try:
        cost = cost_of(cluster, workers, kind)
    except CostError:
        return
    low, high = cost.measured_range or (SIZES[0], SIZES[-1])
    for size in SIZES:
        time = float(cost(size))
        if low <= size <= high and time > 0:
            yield CollectiveUse(kind, "", workers, 1, size, time, size * factor(kind, workers) / time)


def workload_reading(workload: Workload, name: str) -> Reading:
    """The computation of a step, in all and by module."""
    subject = Timed("computation of a step", (StepSeries((workload.compute_time,)),))
    facts = {"workload": workload.name, "batch size": str(workload.batch_size or "not stated")}
    facts["gradients"] = show_bytes(workload.gradient_bytes)
    return Reading(name, "workload", (subject,), modules=modules_of(workload), facts=facts)


def log_reading(run: LoggedRun, name: str) -> Reading:
    """The steps of a trainer's log after the warm-up; without their times, seconds of a sample or a token."""
    facts = {} if run.batch is None else {"global_batch": str(run.batch)}
    if run.seconds:
        return Reading(name, "times", (Timed(STEP, (StepSeries(run.seconds),)),), facts=facts)
    each = run.unit.partition("s/")[0] + (" of a GPU" if run.unit.endswith("/gpu") else "")
    return Reading(name, "rates", (Timed(each, (StepSeries(tuple(1 / one for one in run.values)),)),), facts=facts)


def shared_kind(readings: Sequence[Reading]) -> str:
    """The kind to compare readings as: their own, or step times for several of OF_STEPS.

    Raises UsageError for kinds that do not go together, for rates in several units, and for files with several steps
    where kinds differ.
    """
    first = readings[-1]
    for one in readings:
        if one.kind != first.kind and not {one.kind, first.kind} <= set(OF_STEPS):
            raise UsageError(
                f"{one.name} holds {COMPARABLE[one.kind]}, {first.name} {COMPARABLE[first.kind]}: "
                "compare files of one kind"
            )
        if one.kind == "rates" and one.subjects[0].name != first.subjects[0].name:
            raise UsageError(
                f"{one.name} has the rate of a {one.subjects[0].name}, {first.name} that of a "
                f"{first.subjects[0].name}: compare logs with one unit"
            )
    if all(one.kind == first.kind for one in readings):
        return first.kind
    for one in readings:
        the_step(one)
    return "times"


def the_step(reading: Reading) -> Timed:
    """The only thing with a time in a file. Raises UsageError for several."""
    if len(reading.subjects) > 1:
        raise UsageError(
            f"{reading.name} holds {how_many(len(reading.subjects), 'step')}, such as {reading.subjects[0].name}: "
            "give a file of the one meant, by one --workers and one --plan"
        )
    return reading.subjects[0]


def in_band(side: Sequence[Timed], time: float) -> str:
    """A clause on whether a measured time lies within the error band of a prediction; "" without one."""
    bands = [one.band for one in side if one.band is not None]
    if not bands:
        return ""
    low, high = bands[0]
    inside = "inside" if low <= time <= high else "outside"
    return f"{inside} the prediction's error band, {show_time(low)} to {show_time(high)}"


def prediction_reading(document: Mapping[str, Any], name: str) -> Reading:
    """The step times in a result of ``osf predict``, ``osf tune`` or ``osf scale``. Raises DataError."""
    rows = [*_predicted(document), *_tuned(document), *_scaled(document)]
    facts = {key: str(document[key]) for key in ("workload", "cluster") if isinstance(document.get(key), str)}
    return Reading(name, "prediction", tuple(rows), facts=facts)


def holds_prediction(document: Mapping[str, Any]) -> bool:
    """Whether it is a result of ``osf predict``, ``osf tune`` or ``osf scale``."""
    return any(key in document for key in ("predictions", "sweep", "default_iteration_time_s", "points"))


def _predicted(document: Mapping[str, Any]) -> Iterator[Timed]:
    for entry in _rows(document, "sweep") or [document]:
        for row in _rows(entry, "predictions"):
            time, compute = _time(row, "iteration_time_s"), _time(entry, "compute_time_s")
            exposed = _time(row, "exposed_communication_s")
            parts = {
                "compute": compute,
                "exposed communication": exposed,
                "effects of communication on computation": max(0.0, time - compute - exposed),
            }
            label = f"{row.get('plan', 'plan')}, {entry.get('workers')} workers"
            yield _exact(label, time, parts, _band(row, "error_band"))


def _tuned(document: Mapping[str, Any]) -> Iterator[Timed]:
    rows = [one for one in [document, *_rows(document, "sweep")] if "default_iteration_time_s" in one]
    for row in rows:
        for which in ("default", "tuned"):
            label = f"{document.get('target', 'target')} {which}, {row.get('workers')} workers"
            yield _exact(label, _time(row, f"{which}_iteration_time_s"), band=_band(row, f"{which}_error_band"))


def _scaled(document: Mapping[str, Any]) -> Iterator[Timed]:
    for row in _rows(document, "points"):
        if row.get("step_time_s") is not None:
            label = f"{row.get('strategy')}, {row.get('workers')} workers"
            yield _exact(label, _time(row, "step_time_s"), band=_band(row, "error_band"))


def _exact(
    label: str, time: float, parts: Mapping[str, float] | None = None, band: tuple[float, float] | None = None
) -> Timed:
    return Timed(label, (StepSeries((time,), 0.0),), EXACT, parts or {}, band=band)


def _band(row: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    band = row.get(key)
    return (_time(band, "low_s"), _time(band, "high_s")) if isinstance(band, dict) else None


def _rows(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The list of objects under ``key``; [] without one. Raises DataError for anything else."""
    rows = document.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{key} is not a list of objects")
    return rows


def _time(row: Mapping[str, Any], key: str) -> float:
    """The number of seconds under ``key``. Raises DataError for anything else."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{key} is {value!r:.40}: a number of seconds is needed")
    try:
        return float(value)
    except OverflowError:
        raise DataError(f"{key} is {str(value)[:20]}...: a number of seconds is needed") from None
