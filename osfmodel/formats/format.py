"""A format of other tools' files: the row type of IMPORT_FORMATS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from osfmodel.entities.trace import Trace
from osfmodel.formats.source_text import Files, Hints, Noun, Text
from osfmodel.formats.traces.cautions import nouns_of


class Format(NamedTuple):
    """An entry of IMPORT_FORMATS.

    sniff:   (the first characters of a file) -> whether it is of this format
    read:    (text, hints) -> the nouns in it; DataError with file, line and text for what is wrong
    summary: shown by ``osf list``
    trace:   (files, hints) -> the job that they show together, one rank each; None if they are no traces
    job:     (files, hints) -> the nouns in the files of one job, of any size; None if each file is read by itself
    endings: endings of such files' names, by which they are found in a folder
    label:   name of such a file, for advice if it is given instead of our own: "nccl-tests output"
    runs:    whether it may hold measured runs beside a workload and a cluster, so that --kind chooses
    """

    sniff: Callable[[str], bool]
    read: Callable[[Text, Hints], Sequence[Noun]]
    summary: str
    trace: Callable[[Files, Hints], Trace] | None = None
    job: Callable[[Files, Hints], Sequence[Noun]] | None = None
    endings: tuple[str, ...] = ()
    label: str = ""
    runs: bool = False


def of_traces(
    sniff: Callable[[str], bool],
    trace: Callable[[Files, Hints], Trace],
    summary: str,
    endings: tuple[str, ...],
    label: str = "",
) -> Format:
    """A format of traces: a job may have several files of any size, also in archives and folders."""

    def read(text: Text, hints: Hints) -> Sequence[Noun]:
        return job(Files((text,), text.tell), hints)

    def job(files: Files, hints: Hints) -> Sequence[Noun]:
        return nouns_of(trace(files, hints), hints, files.tell)

    return Format(sniff, read, summary, trace, job, endings, label, runs=True)
