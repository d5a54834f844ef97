"""Read any file that can be compared: find out what it is, and make a Reading of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from errno import ENOENT
from pathlib import Path
from typing import Any

from osfmodel.cost import COST_MODELS
from osfmodel.cost.clusters import load_cluster
from osfmodel.diagnosis.comparing.own_files import (
    cluster_reading,
    holds_prediction,
    prediction_reading,
    runs_reading,
    workload_reading,
)
from osfmodel.diagnosis.comparing.readings import Reading
from osfmodel.diagnosis.comparing.step_times import times_reading
from osfmodel.diagnosis.comparing.traced import trace_reading
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.files import documents, plain_text, profiles
from osfmodel.entities.files.measurements import decode_measurements, load_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.trace import Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats import IMPORT_FORMATS, format_of, import_content, import_job, is_job, load_trace
from osfmodel.formats.source_text import Hints, Text, silent, stem
from osfmodel.formats.streams.archives import unpacked

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
    if name in profiles.names("measurements"):
        return runs_reading(load_measurements(name), name)
    if name in profiles.names("cluster"):
        return cluster_reading(load_cluster(name), name)
    if name in profiles.names("workload"):
        return workload_reading(profiles.load_workload(name), name)
    missing = FileNotFoundError(ENOENT, "no such file or folder, and no bundled profile has that name")
    raise DataError(f"{name} cannot be read: {profiles.reason(Path(name), missing)}")


def _decoded(name: str, form: str | None, content: bytes, tell: Callable[[str], None]) -> Reading:
    first, _, rest = content.strip().partition(b"\n")
    lines = rest and first.rstrip().endswith(b"}")  # each line is an object of its own
    if form == OWN and not lines:
        return _own(name, content)
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
