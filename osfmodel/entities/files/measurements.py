"""Files of measured runs: JSON <-> Measurement.

A file holds the runs of one source, with everything that they share written once:

{"schema_version": 1, "kind": "measurements", "name": "bcaffe", "source": {...}, "warm_ups": 0,
 "runs": [{"workload": .., "cluster": .., "plan": .., "workers": 8, "iteration_time_s": [..],
           "deviation_s": .., "conditions": {"batch_size": "64"}}]}
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import msgspec

from osfmodel.entities.errors import DataError
from osfmodel.entities.files import documents, profiles
from osfmodel.entities.measurement import Measurement, Source


class RunDocument(documents.Strict):
    """A run; fields in the order in which a file shows them."""

    workload: str
    cluster: str
    plan: str
    workers: int
    iteration_time_s: list[float] = msgspec.field(default_factory=list)
    deviation_s: float | None = None
    peak_bytes: int | None = None
    conditions: dict[str, str] = msgspec.field(default_factory=dict)


class MeasurementsFile(documents.Strict, kw_only=True):
    """A file of measured runs."""

    schema_version: int
    kind: str = ""
    name: str
    warm_ups: int = 0
    source: Source = Source()
    runs: list[RunDocument]


def decode_measurements(text: bytes) -> tuple[Measurement, ...]:
    """A measurement file's content. Raises DataError saying what is wrong, and in which run."""
    document = documents.decode(text, "measurements", MeasurementsFile)
    if not document.runs:
        raise DataError("holds no runs")
    found = []
    for number, row in enumerate(document.runs):
        try:
            found.append(
                Measurement(
                    row.workload,
                    row.cluster,
                    row.plan,
                    row.workers,
                    tuple(row.iteration_time_s),
                    document.warm_ups,
                    tuple(row.conditions.items()),
                    document.source,
                    row.deviation_s,
                    row.peak_bytes,
                )
            )
        except DataError as error:
            raise DataError(f"run {number}: {error}") from None
    return tuple(found)


def measurements_document(name: str, runs: Sequence[Measurement]) -> dict[str, Any]:
    """The JSON-ready form that :func:`decode_measurements` reads. Raises DataError if the runs share no source."""
    shared = {(run.source, run.warm_ups) for run in runs}
    if len(shared) != 1:
        raise DataError(f"the runs of {name!r} have {len(shared)} sources or warm-ups: a file holds those of one")
    ((source, warm_ups),) = shared
    rows = [
        RunDocument(
            run.workload,
            run.cluster,
            run.plan,
            run.workers,
            list(run.samples),
            run.deviation,
            run.peak_bytes,
            dict(run.conditions),
        )
        for run in runs
    ]
    document = MeasurementsFile(
        schema_version=documents.SCHEMA_VERSION,
        kind="measurements",
        name=name,
        warm_ups=warm_ups,
        source=source,
        runs=rows,
    )
    built: dict[str, Any] = msgspec.to_builtins(document)
    if source.gpu == Source().gpu and "source" in built:
        del built["source"]["gpu"]
    return built


def load_measurements(name_or_path: str | os.PathLike[str]) -> tuple[Measurement, ...]:
    """The bundled runs of a source by name, or those in a JSON file.

    Raises UsageError for an unknown name, DataError for a file that cannot be used.
    """
    return profiles.read_own(profiles.locate(name_or_path, "measurements"), decode_measurements, "measurements")


def save_measurements(name: str, runs: Sequence[Measurement], path: str | os.PathLike[str]) -> None:
    """Write measured runs as JSON that :func:`load_measurements` reads. Raises DataError; never leaves half a file."""
    profiles.write_text(path, documents.encode(measurements_document(name, runs)))
