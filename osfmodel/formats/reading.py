"""Read files of other tools: find the format of each, one by itself or all of a job, and advise on misplaced ones.

osfmodel's own formats are asked first, then those of other packages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from osfmodel.entities.errors import DataError, ForeignFileError
from osfmodel.entities.files.profiles import as_utf8, plain_text, read
from osfmodel.entities.lookup import all_names, require, usable_others
from osfmodel.entities.trace import Trace
from osfmodel.formats.collectives import nccl_tests
from osfmodel.formats.format import IMPORT_FORMATS, Format, explained, foreign, unlike
from osfmodel.formats.source_text import Files, Hints, Noun, Progress, Text, shared_stem, silent
from osfmodel.formats.streams import HEAD, head_of, recognised
from osfmodel.formats.streams.archives import unpacked
from osfmodel.formats.trainers import LoggedRun

NO_HINTS = Hints("")
Table = Mapping[str, Format]


def known_of(path: Path | Text, table: Table, wanted: Callable[[Format], bool]) -> str | None:
    """The name of the ``wanted`` format that recognises a file, or the first one known in an archive or a folder.

    None if none does, or if another of osfmodel's own formats does. Raises DataError, with the path, for what cannot be
    read, and for an archive or a folder with nothing in it that is known.
    """
    unknown = None
    try:
        if (known := _asked(path, entries_that(table, wanted))) is not None:
            return known
    except DataError as error:
        unknown = error
    with suppress(DataError):
        if unknown is None and _asked(path, entries_that(table, lambda entry: not wanted(entry))) is not None:
            return None
        if others := entries_that(usable_others(table)[0], wanted):
            return _asked(path, {name: entry._replace(sniff=_guarded(entry.sniff)) for name, entry in others.items()})
    if unknown is not None:
        raise unknown
    return None


def entries_that(table: Table, wanted: Callable[[Format], bool]) -> Table:
    """The ``wanted`` entries of ``table``."""
    return {name: entry for name, entry in table.items() if wanted(entry)}


def _asked(path: Path | Text, table: Table) -> str | None:
    """The name in ``table`` that recognises the file; None if none does."""
    if isinstance(path, Text):
        return next((name for name, entry in table.items() if entry.sniff(path.content[:HEAD])), None)
    sniffs = {name: entry.sniff for name, entry in table.items()}
    return recognised(path, sniffs, [ending for entry in table.values() for ending in entry.endings])


def others_that_know(head: str, table: Table) -> tuple[list[str], list[str]]:
    """The formats of other packages that recognise a beginning, and a sentence on each that does not load."""
    others, problems = usable_others(table)
    return [name for name, entry in others.items() if _guarded(entry.sniff)(head)], problems


def _guarded(sniff: Callable[[str], bool]) -> Callable[[str], bool]:
    """``sniff`` of another package: False where it fails."""

    def guarded(head: str) -> bool:
        try:
            return bool(sniff(head))
        except Exception:
            return False

    return guarded


def import_file(
    path: Path, hints: Hints, form: str | None = None, tell: Callable[[str], None] | None = None
) -> Sequence[Noun]:
    """The nouns in a file of another tool, which may be packed with gzip.

    ``tell`` receives oddities that are not faults, such as a test that was cut off, in one line; else they become a
    warning. Raises UsageError for an unknown format, DataError for a bad file.
    """
    tell = tell or _as_warning
    if is_job([path], form):
        return import_job([path], hints, tell, form=form)
    return read(path, lambda content: import_content(content, path.name, hints, form, tell))


def load_trace(
    paths: Sequence[Path | Text],
    hints: Hints = NO_HINTS,
    tell: Callable[[str], None] = silent,
    progress: Progress | None = None,
    form: str | None = None,
) -> Trace:
    """The job shown by the traces of its ranks: files, tars or folders of them, of the format that recognises them.

    ``hints`` give a name (else the common beginning of the file names) and what traces may lack; ``tell`` receives a
    sentence on each file left out. Raises DataError for anything but traces of one known format, and as that does.
    """
    chosen = form or _shared_format(paths)
    trace = None if chosen is None else _entry(chosen).trace
    if trace is None:
        raise DataError(f"{_file(paths[0])}: {_no_trace(paths[0])}")
    return trace(Files(tuple(paths), tell, progress), _titled(hints, paths))


def import_job(
    paths: Sequence[Path | Text],
    hints: Hints = NO_HINTS,
    tell: Callable[[str], None] = silent,
    progress: Progress | None = None,
    form: str | None = None,
) -> Sequence[Noun]:
    """The nouns in the files of one job, traces or not, with the arguments of :func:`load_trace`.

    Raises DataError for files that :func:`is_job` does not know, and as their reader does.
    """
    chosen = form or _shared_format(paths)
    job = None if chosen is None else _entry(chosen).job
    if job is None:
        raise DataError(f"{_file(paths[0])}: is not among the files of a job that osfmodel reads")
    return job(Files(tuple(paths), tell, progress), _titled(hints, paths))


def _titled(hints: Hints, paths: Sequence[Path | Text]) -> Hints:
    """``hints`` with a name, without one the common beginning of the file names."""
    return replace(hints, name=hints.name or shared_stem([_file(path) for path in paths]))


def _file(path: Path | Text) -> str:
    return path.file if isinstance(path, Text) else str(path)


def _no_trace(path: Path | Text) -> str:
    """Error text for a file that is not a trace: what it is, and what reads it."""
    name = format_of(path)
    if name is None and not isinstance(path, Text):
        head = head_of(path)
        if what := unlike(head) or foreign(head):
            return what
    if name is None:
        traces = entries_that(IMPORT_FORMATS, lambda entry: entry.trace is not None)
        return f"is not a profiler trace that osfmodel reads ({', '.join(traces)}), nor a file for osf import"
    if name == "osfmodel":
        return (
            "is a file of osfmodel, not a profiler trace: osf predict, osf tune and osf report take a workload, and "
            "a cluster after --cluster"
        )
    return f"is {name} ({IMPORT_FORMATS[name].summary}), not a profiler trace: convert it with osf import"


def holds_traces(paths: Sequence[Path], form: str | None = None) -> bool:
    """Whether ``paths`` are traces of one job for :func:`load_trace`.

    Raises UsageError for an unknown format, DataError where files are of a job and others are not.
    """
    chosen = form or _shared_format(paths)
    return chosen is not None and _entry(chosen).trace is not None


def is_job(paths: Sequence[Path], form: str | None = None) -> bool:
    """Whether ``paths`` are files of one job, traces or not, for :func:`import_job`; if not, each is read by itself.

    Raises as :func:`holds_traces` does.
    """
    chosen = form or _shared_format(paths)
    return chosen is not None and _entry(chosen).job is not None


def _shared_format(paths: Sequence[Path | Text]) -> str | None:
    """The format of a job's files that all share; None if each is to be read by itself."""
    found = [known_of(path, IMPORT_FORMATS, lambda entry: entry.job is not None) for path in paths]
    other = next((path for path, name in zip(paths, found, strict=True) if name != found[0]), None)
    if other is not None:
        raise DataError(f"{paths[0]} and {other} are not of one format: import each by itself, and leave {other} out")
    return found[0]


def format_of(path: Path | Text) -> str | None:
    """The name of the format of a file, or of the first in an archive or a folder; None if it is unknown.

    Raises DataError for what cannot be read or unpacked, and for an archive or a folder with nothing in it.
    """
    return known_of(path, IMPORT_FORMATS, lambda entry: True)


def _entry(form: str) -> Format:
    return require(form, IMPORT_FORMATS, "format")


def import_content(
    content: bytes, file: str, hints: Hints, form: str | None = None, tell: Callable[[str], None] | None = None
) -> Sequence[Noun]:
    """The nouns in a file's content; ``file`` names it in their source."""
    if form is not None:
        _entry(form)
    plain = as_utf8(unpacked(content))
    if what := unlike(plain):
        raise DataError(what)
    try:
        text = Text(file, plain_text(plain), tell=tell or _as_warning)
    except UnicodeDecodeError as error:
        if what := foreign(plain[:HEAD]):
            raise DataError(what) from None
        line = plain.count(b"\n", 0, error.start) + 1
        raise DataError(f"line {line}: is not text, nor of a binary format that is known here") from None
    return IMPORT_FORMATS[form or recognise(text)].read(text, hints)


def logged_run(path: Path, tell: Callable[[str], None] = silent) -> LoggedRun:
    """The run that a trainer's log shows. Raises DataError, with the path, for any other file."""
    form = format_of(path)
    log = None if form is None else IMPORT_FORMATS[form].log

    def decoded(content: bytes) -> LoggedRun:
        plain = as_utf8(unpacked(content))
        if log is None:
            logs = entries_that(IMPORT_FORMATS, lambda entry: entry.log is not None)
            raise DataError(unlike(plain) or f"is no log of a trainer that osfmodel reads ({', '.join(logs)})")
        return log_of(log, plain, path.name, tell)

    return read(path, decoded)


def log_of(log: Callable[[Text], LoggedRun], plain: bytes, file: str, tell: Callable[[str], None]) -> LoggedRun:
    """The run in the content of a log. Raises DataError, also for logs of several trainers in one file."""
    try:
        text = Text(file, plain_text(plain), tell=tell)
    except UnicodeDecodeError:
        raise DataError("is not text") from None
    logs = entries_that(IMPORT_FORMATS, lambda entry: entry.log is not None and entry.sniff(text.content[:HEAD]))
    if len(logs) > 1:
        raise DataError(f"may be {' or '.join(logs)}: give the log of each by itself")
    return log(text)


def _as_warning(message: str) -> None:
    import warnings

    warnings.warn(message, stacklevel=4)


def recognise(text: Text) -> str:
    """The name of the format of ``text``. Raises DataError, with what is missing, if it is unknown."""
    head = text.content[:HEAD]
    found = [name for name, entry in IMPORT_FORMATS.items() if entry.sniff(head)]
    if not found and nccl_tests.sniff(text.content):  # NCCL's own log may precede the table
        found = ["nccl-tests"]
    problems: Sequence[str] = ()
    if not found:
        found, problems = others_that_know(head, IMPORT_FORMATS)
    if len(found) > 1:
        raise DataError(f"may be {' or '.join(found)}: say which with --as")
    if not found:
        raise DataError("; ".join([explained(head, all_names(IMPORT_FORMATS)), *problems]))
    return found[0]


def import_advice(error: ForeignFileError) -> str:
    """The message of ``error``, with the command that converts the file if its format is known."""
    path = error.path
    try:
        name = format_of(path) if path.is_file() else None
    except DataError as unreadable:
        return str(unreadable)
    if name in (None, "osfmodel"):
        bundled = f"; 'osf list {error.kind}s' shows what comes with osfmodel"
        return f"{error}{bundled if error.kind != 'measurements' else ', or give a file of osf run'}"
    entry = IMPORT_FORMATS[name]
    return f"{path}: looks like {entry.label or name}: {_command(path, error.kind, entry)}"


def _command(path: Path, kind: str, entry: Format) -> str:
    """The command that converts it into a file of ``kind``; a run is imported with the files that it names."""
    stem = path.name.partition(".")[0] or kind
    if kind == "measurements":
        if entry.log:
            return f"compare it with its prediction: `osf check {path} --prediction FILE`"
        if not entry.runs:
            return "no runs are imported from that: leave it out, or give a file of osf run"
        return f"run `osf import {path} -o {path.with_name(stem)}/`, and give the {kind} file in that folder"
    target = path.with_name(f"{stem}-{kind}.json" if entry.runs else f"{stem}.json")
    target = target if target != path else path.with_name(f"{kind}.json")
    which = f" --kind {kind}" if entry.runs else ""
    return f"run `osf import {path}{which} -o {target}`, and give that file"
