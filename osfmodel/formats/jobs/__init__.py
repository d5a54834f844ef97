"""JOB_FORMATS: configurations of training jobs, as files of frameworks state them -> words and layout."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import plain_text, read
from osfmodel.entities.lookup import LateTable
from osfmodel.formats.jobs.job import FileKeys, JobConfig, JobFormat

JOB_FORMATS: LateTable[JobFormat] = LateTable(
    {
        "torchtitan": "formats.jobs.torchtitan:FORMAT",
        "megatron": "formats.jobs.megatron:FORMAT",
        "deepspeed": "formats.jobs.deepspeed:FORMAT",
        "huggingface": "formats.jobs.huggingface:FORMAT",
    }
)
OWN = (".toml", ".sh", ".bash", ".args", ".slurm", ".sbatch")
"""Endings of files that no other command reads, so that one of them must be a job."""


def job_at(name: str) -> JobConfig | None:
    """The job that the file ``name`` states; None where there is no such file, or one of another kind.

    Raises DataError, with the path, for a file of a framework that cannot be read.
    """
    path = Path(name)
    ending = path.suffix.lower()
    formats = [form for form in JOB_FORMATS if ending in JOB_FORMATS[form].endings]
    if not formats or not os.path.isfile(name):
        return None

    def decoded(content: bytes) -> JobConfig | None:
        try:
            text = plain_text(content)
        except UnicodeDecodeError:
            raise DataError("is not text") from None
        for form in formats:
            values = JOB_FORMATS[form].decode(text)
            keys = FileKeys(values)
            if any(sign in values or sign in keys.values for sign in JOB_FORMATS[form].signs):
                return _job(form, keys)
        if ending in OWN:
            signs = " or ".join(sign for form in formats for sign in JOB_FORMATS[form].signs)
            raise DataError(f"states no job of {', '.join(JOB_FORMATS)}: give one that has {signs}")
        return None

    return read(path, decoded)


def _job(form: str, keys: FileKeys) -> JobConfig:
    found = JOB_FORMATS[form].read(keys)
    left, outside = keys.left(JOB_FORMATS[form].beside), keys.outside()
    notes = [f"not understood, and not counted: {', '.join(left)}"] if left else []
    notes += [f"set outside the file, and left open: {', '.join(outside)}"] if outside else []
    return replace(found, framework=form, notes=(*found.notes, *notes))
