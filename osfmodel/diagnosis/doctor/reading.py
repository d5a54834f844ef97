"""Read the files of a check-up: bundled clusters by name, our own cluster files, and everything that is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from errno import ENOENT
from pathlib import Path

from osfmodel.cost.clusters import load_cluster
from osfmodel.diagnosis.doctor import HEALTHY, Checkup, check_up
from osfmodel.diagnosis.doctor.curves import CLASSES, KNOWN_MACHINES, Curve, curve_of
from osfmodel.entities.cluster import Cluster, Table
from osfmodel.entities.display import brief, how_many, listed
from osfmodel.entities.errors import CostError, DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.gpus import generation_of
from osfmodel.formats import Hints, import_file
from osfmodel.formats.source_text import require_different, shared_stem, silent, stem

SLOW_HOST = "slow-host"


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """A cluster that a file holds, by the file's label; ``bundled`` is the name of a bundled one, else ""."""

    label: str
    cluster: Cluster
    bundled: str = ""

    __repr__ = brief

    @property
    def states_layout(self) -> bool:
        """Whether the file says how ranks lie on nodes; a CSV file without such a column has one on each."""
        conditions = self.cluster.source.conditions
        return self.cluster.gpus_per_node > 1 or conditions.startswith("nccl-tests") or "on each host" in conditions


def read_measured(file: str, hints: Hints, tell: Callable[[str], None] = silent) -> list[MeasuredFile]:
    """The clusters with tables in ``file``, or the bundled one of that name. Raises UsageError and DataError."""
    if ":" in file and not Path(file).exists():
        raise UsageError(f"{file!r} describes a machine: give a file of measurements, and the description to --against")
    if file in profiles.names("cluster") and not Path(file).exists():
        found = [MeasuredFile(file, load_cluster(file), file)]
    else:
        if Path(file).suffix and not Path(file).exists():
            missing = FileNotFoundError(ENOENT, "there is no such file")
            raise DataError(f"{file}: {profiles.reason(Path(file), missing)}")
        path = profiles.locate(file, "cluster")
        nouns = import_file(path, replace(hints, name=stem(file)), None, tell)
        clusters = [noun for noun in nouns if isinstance(noun, Cluster)]
        label = (lambda one: stem(file)) if len(clusters) == 1 else (lambda one: one.name)
        found = [MeasuredFile(label(one), one) for one in clusters]
    if not any(one.cluster.tables for one in found):
        raise DataError(
            f"{file}: holds no measured times of a collective: give an nccl-tests log, a file of osf bench, or another "
            "that osf import reads as a table"
        )
    return [one for one in found if one.cluster.tables]


def examine(
    files: Sequence[str],
    against: Cluster | None = None,
    hints: Hints | None = None,
    tell: Callable[[str], None] = silent,
) -> Checkup:
    """Check the machine that ``files`` measured, all hosts or some of them, against its description.

    Without ``against`` a bundled cluster is compared with its own words. Raises UsageError where they are needed,
    DataError for files that cannot be used, CostError where the description does not fit the measured workers.
    """
    require_different(files)
    told: list[str] = []

    def tell_and_keep(message: str) -> None:
        told.append(message)
        tell(message)

    found = [one for file in files for one in read_measured(file, hints or Hints(""), tell_and_keep)]
    known = KNOWN_MACHINES.get(found[0].bundled) if len({one.label for one in found}) == 1 else None
    if against is None:
        if known is None:
            raise UsageError(_describe(found[0].cluster))
        against = load_cluster(known.words)
    remarks: list[str] = []
    healthy = _placed(found, against, known is not None, remarks)
    curves = [curve for one in found for curve in _curves(one, healthy, remarks) if curve.sizes]
    name = shared_stem([one.label for one in found]) if len(found) > 1 else found[0].label
    checked = check_up(name, curves, healthy, "" if known is None else known.machine)
    if checked.cause == HEALTHY and told:  # rows cut off or with wrong results say nothing of the time
        checked = replace(checked, verdict=f"{checked.verdict[:-1]}, but not all of the files is in order (see notes).")
    remarks += told
    return replace(checked, remarks=(*dict.fromkeys(remarks), *checked.remarks, *_untold(checked.cause, curves)))


def _untold(cause: str, curves: Sequence[Curve]) -> Iterator[str]:
    """Remarks on parts of the curve that were not measured, and on groups of hosts that may be the same."""
    octaves = {int(octave) for curve in curves for octave in curve.octaves}
    missing = [part for part, (low, high) in CLASSES.items() if not any(low <= octave < high for octave in octaves)]
    if missing:
        yield f"no size shows {listed(missing)}: give a log of more sizes"
    if cause == SLOW_HOST and len({curve.place.nodes for curve in curves}) == 1:
        yield "if the files are of the same hosts, none of them is slow, but all at another time: give one to --against"


def _describe(cluster: Cluster) -> str:
    gpu = cluster.source.gpu
    said = f" (the file says that the GPU is {gpu})" if gpu not in ("not stated", "none (CPU)") else ""
    example = "nccl:h100x8,400Gbps,ib or, for hosts over Ethernet, ring:50us,10Gbps"
    return f"{cluster.name!r} does not say which machines these are{said}: give --against, such as {example}"


def _placed(found: Sequence[MeasuredFile], against: Cluster, known: bool, remarks: list[str]) -> Cluster:
    """``against`` with as many GPUs per node as were used, where the files say so."""
    if known:
        return against
    spread = {one.cluster.gpus_per_node for one in found if one.states_layout and (one.cluster.nodes or 1) > 1}
    if len(spread) > 1:
        counts = listed(list(map(str, sorted(spread))))
        raise UsageError(f"the files have {counts} GPUs on a node: check those of one layout together")
    used = next(iter(spread), against.gpus_per_node)
    if used == against.gpus_per_node:
        return against
    many = f"{against.name} has {against.gpus_per_node}"
    remarks.append(f"the files have {how_many(used, 'worker')} on each node, {many}: priced with {used}")
    return replace(against, gpus_per_node=used)


def _curves(one: MeasuredFile, against: Cluster, remarks: list[str]) -> list[Curve]:
    if against.nccl is not None and one.cluster.library not in ("", "nccl"):
        remarks.append(f"{one.label} was measured with {one.cluster.library}, the description is of NCCL")
    gpu = one.cluster.source.gpu
    if against.nccl is not None and generation_of(gpu) not in ("", against.nccl.generation):
        remarks.append(f"{one.label} says that the GPU is {gpu}, the description is of {against.nccl.generation} GPUs")
    kinds = {table.collective for table in one.cluster.tables}
    kept = [table for table in one.cluster.tables if "all_reduce" not in kinds or table.collective == "all_reduce"]
    if len(kept) < len(one.cluster.tables):
        others = sorted(kinds - {"all_reduce"})
        remarks.append(f"{one.label}: checked by its all-reduces; its {listed(others)} stay aside")
    return [_curve(one, table, against) for table in kept]


def _curve(one: MeasuredFile, table: Table, against: Cluster) -> Curve:
    try:
        return curve_of(one.label, table, against)
    except CostError as error:
        raise CostError(f"{one.label}: --against {against.name}: {error}") from None
