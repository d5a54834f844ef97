"""Files of other tools -> our entities.

To add one: a module with ``sniff(head)`` and ``read(text, hints)``, and one line here; from another package, an entry
point of ``osfmodel.formats``, which is asked about files that no format here recognises. If a job has several files,
of any size and also in archives and folders, the module reads them as streams: traces with steps in
``trace_of(files, hints)``, which gives a Trace, from which ``of_traces`` makes the nouns; any others in
``read_job(files, hints)``, which gives the nouns.
Sniffing is exclusive: no file is recognised by two, which tests/formats checks over samples of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from osfmodel.entities.errors import DataError
from osfmodel.entities.files.profiles import as_utf8, plain_text, read
from osfmodel.entities.lookup import LateTable, all_names, require
from osfmodel.entities.trace import Trace
from osfmodel.formats import kineto, layers, nsight, own
from osfmodel.formats.collectives import chakra, flight_recorder, inspector, nccl_tests, tables
from osfmodel.formats.collectives.clusters import as_one_cluster
from osfmodel.formats.format import Format, of_traces
from osfmodel.formats.horovod import files
from osfmodel.formats.sniffing import entries_that, known_of, others_that_know
from osfmodel.formats.source_text import Files, Hints, Noun, Progress, Text, shared_stem, silent
from osfmodel.formats.streams.archives import unpacked
from osfmodel.formats.streams.trace_files import HEAD, head_of
from osfmodel.formats.traces.cautions import nouns_of
from osfmodel.formats.unknown import explained, foreign, unlike

__all__ = [
    "IMPORT_FORMATS", "Files", "Format", "Hints", "Noun", "as_one_cluster", "format_of", "holds_traces",
    "import_content", "import_file", "import_job", "is_job", "load_trace", "nouns_of", "of_traces", "recognise",
]  # fmt: skip

NO_HINTS = Hints("")


IMPORT_FORMATS: LateTable[Format] = LateTable(
    {
        "nccl-tests": Format(
            nccl_tests.sniff,
            nccl_tests.read,
            "what nccl-tests prints, one run or several, also through mpirun",
            label="nccl-tests output",
        ),
        "nccl-tests-json": Format(
            nccl_tests.sniff_json, nccl_tests.read_json, "what nccl-tests writes with -J", label="nccl-tests JSON"
        ),
        "rccl-tests": Format(
            nccl_tests.sniff_rccl,
            nccl_tests.read_rccl,
            "what rccl-tests writes with -x, JSON or CSV",
            label="rccl-tests output",
        ),
        "nccl-inspector": Format(
            inspector.sniff,
            inspector.read,
            "NCCL Inspector's logs of a job, one file for each process: collectives by size",
            job=inspector.read_job,
            endings=inspector.ENDINGS,
            label=inspector.RECORDER.label,
        ),
        "flight-recorder": Format(
            flight_recorder.sniff,
            flight_recorder.read,
            "dumps of PyTorch's flight recorder, one file for each rank: collectives by size, where NCCL timed them",
            job=flight_recorder.read_job,
            endings=flight_recorder.ENDINGS,
            label=flight_recorder.RECORDER.label,
        ),
        "chakra": Format(
            chakra.sniff,
            chakra.read,
            "Chakra execution traces in protobuf, one file for each rank: collectives by size; they have no steps",
            job=chakra.read_job,
            endings=chakra.ENDINGS,
            label=chakra.RECORDER.label,
        ),
        "osu": Format(
            tables.sniff_osu,
            tables.read_osu,
            "OSU micro-benchmarks of a collective: osu_allreduce, osu_reduce_scatter, osu_allgather",
            label="OSU output",
        ),
        "csv-table": Format(
            tables.sniff_csv,
            tables.read_csv,
            "CSV of collectives: n_gpus, bytes, time_us (or _ms, _s); or n_gpus, alpha_s, beta_s_per_byte",
            label="a CSV file of collectives",
        ),
        "csv-layers": Format(
            layers.sniff_csv,
            layers.read_csv,
            "CSV of layers: name, bytes (or params), forward_ms, backward_ms (or _us, _s)",
            label="a CSV file of layers",
        ),
        "json-layers": Format(
            layers.sniff_json,
            layers.read_json,
            "JSON list of layers, with the columns of csv-layers",
            label="a JSON list of layers",
        ),
        "pipedream": Format(
            layers.sniff_pipedream, layers.read_pipedream, "PipeDream's graph.txt", label="PipeDream's graph"
        ),
        "ddp-logging": Format(
            layers.sniff_ddp, layers.read_ddp, "DDP's _get_ddp_logging_data() as JSON", label="DDP's log"
        ),
        "horovod-timeline": Format(
            files.sniff_timeline,
            files.read_timeline,
            "HOROVOD_TIMELINE, also cut off: iteration times, the model and the network as Horovod's loop saw them",
            label="Horovod's timeline",
            runs=True,
        ),
        "horovod-autotune": Format(
            files.sniff_autotune,
            files.read_autotune,
            "HOROVOD_AUTOTUNE_LOG: says what its tuner found",
            label="Horovod's autotune log",
        ),
        "kineto": of_traces(
            kineto.sniff,
            kineto.trace_of,
            "torch.profiler's traces, of one rank or of all: the model, the network and the steps as they were",
            kineto.ENDINGS,
            kineto.LABEL,
        ),
        "nsight-systems": of_traces(
            nsight.sniff,
            nsight.trace_of,
            "Nsight Systems' SQLite export, of one rank or of all: steps by NVTX ranges, kernels, NCCL's collectives",
            nsight.ENDINGS,
            nsight.LABEL,
        ),
        "osfmodel": Format(own.sniff, own.read, "a workload or cluster file of osfmodel itself"),
    },
    "osfmodel.formats",
    Format,
)


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
