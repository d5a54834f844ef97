"""IMPORT_FORMATS: the formats of other tools' files that are read, the type of its rows, and our own files as one.

osfmodel's own workload and cluster files can be imported like any other. At the end is what a file of an unknown format
looks like, and what it would need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from osfmodel.cost import COST_MODELS
from osfmodel.entities import lookup
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import DataError
from osfmodel.entities.files.documents import KINDS, decode_cluster, decode_workload
from osfmodel.entities.lookup import LateTable
from osfmodel.entities.trace import Trace
from osfmodel.entities.workload import Workload
from osfmodel.formats import horovod, kineto, layers, memory_snapshot, nsight, topology
from osfmodel.formats.collectives import PROGRAM, chakra, flight_recorder, inspector, nccl_tests, tables
from osfmodel.formats.collectives.calls import Recorder
from osfmodel.formats.source_text import Files, Hints, Noun, Text, columns_of, content, parse, pick
from osfmodel.formats.traces.cautions import nouns_of
from osfmodel.formats.trainers import LoggedRun, logs, measurement_of


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
    log:     (text) -> the steps that a trainer logged; None if it is no such log
    """

    sniff: Callable[[str], bool]
    read: Callable[[Text, Hints], Sequence[Noun]]
    summary: str
    trace: Callable[[Files, Hints], Trace] | None = None
    job: Callable[[Files, Hints], Sequence[Noun]] | None = None
    endings: tuple[str, ...] = ()
    label: str = ""
    runs: bool = False
    log: Callable[[Text], LoggedRun] | None = None


def of_job(
    sniff: Callable[[str], bool],
    job: Callable[[Files, Hints], Sequence[Noun]],
    summary: str,
    endings: tuple[str, ...],
    label: str,
    trace: Callable[[Files, Hints], Trace] | None = None,
) -> Format:
    """A format of which a job may have several files of any size, also in archives and folders."""

    def read(text: Text, hints: Hints) -> Sequence[Noun]:
        return job(Files((text,), text.tell), hints)

    return Format(sniff, read, summary, trace, job, endings, label, runs=trace is not None)


def of_traces(
    sniff: Callable[[str], bool],
    trace: Callable[[Files, Hints], Trace],
    summary: str,
    endings: tuple[str, ...],
    label: str = "",
) -> Format:
    """A format of traces."""

    def job(files: Files, hints: Hints) -> Sequence[Noun]:
        return nouns_of(trace(files, hints), hints, files.tell)

    return of_job(sniff, job, summary, endings, label, trace)


def of_recorder(recorder: Recorder, job: Callable[[Files, Hints], Sequence[Noun]], summary: str) -> Format:
    """A format of collectives that each rank recorded."""
    return of_job(recorder.sniff, job, summary, recorder.endings, recorder.label)


def of_log(sniff: Callable[[str], bool], log: Callable[[Text], LoggedRun], summary: str, label: str) -> Format:
    """A format of a trainer's log: it is imported, compared, checked and taken as an anchor."""

    def read(text: Text, hints: Hints) -> Sequence[Noun]:
        return measurement_of(log(text), text, hints)

    return Format(sniff, read, summary, label=label, runs=True, log=log)


def sniff_own(head: str) -> bool:
    """Whether it is a JSON object with a schema_version, as our own files are."""
    return head.lstrip().startswith("{") and '"schema_version"' in head


def read_own(text: Text, hints: Hints) -> list[Workload | Cluster]:
    """The workload or the cluster, under its own name. Raises DataError for anything else."""
    document = parse(text)
    kind = document.get("kind") or next((name for name, field in KINDS.items() if field in document), "document")
    if kind == "workload":
        found = decode_workload(content(text))
        return [found if found.batch_size is not None else replace(found, batch_size=hints.batch_size)]
    if kind == "cluster":
        cluster = decode_cluster(content(text))
        lookup.require(cluster.cost_model, COST_MODELS, "cost model")
        return [cluster]
    raise DataError(f"is a file of osfmodel, of kind {kind!s:.40}: only workloads and clusters are imported")


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
        "nccl-inspector": of_recorder(
            inspector.RECORDER,
            inspector.read_job,
            "NCCL Inspector's logs of a job, one file for each process: collectives by size",
        ),
        "flight-recorder": of_recorder(
            flight_recorder.RECORDER,
            flight_recorder.read_job,
            "dumps of PyTorch's flight recorder, one file for each rank: collectives by size, where NCCL timed them",
        ),
        "chakra": of_recorder(
            chakra.RECORDER,
            chakra.read_job,
            "Chakra execution traces in protobuf, one file for each rank: collectives by size; they have no steps",
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
            horovod.sniff_timeline,
            horovod.read_timeline,
            "HOROVOD_TIMELINE, also cut off: iteration times, the model and the network as Horovod's loop saw them",
            label="Horovod's timeline",
            runs=True,
        ),
        "horovod-autotune": Format(
            horovod.sniff_autotune,
            horovod.read_autotune,
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
        memory_snapshot.NAME: Format(
            memory_snapshot.sniff,
            memory_snapshot.read,
            "torch.cuda.memory._dump_snapshot's pickle, for osf explain: a GPU's memory, its peak, who owns it",
            job=memory_snapshot.read_job,
            endings=memory_snapshot.ENDINGS,
            label=memory_snapshot.LABEL,
        ),
        "nvidia-topology": Format(
            topology.sniff, topology.read, "nvidia-smi topo -m: one node, with --gpu", label="nvidia-smi topo -m"
        ),
        "torchtitan": of_log(
            logs.sniff_torchtitan, logs.torchtitan, "torchtitan's log: steps and rates", "torchtitan's log"
        ),
        "megatron": of_log(
            logs.sniff_megatron, logs.megatron, "Megatron-LM's log, or NeMo's: steps", "Megatron-LM's log"
        ),
        "trainer-state": of_log(
            logs.sniff_trainer_state,
            logs.trainer_state,
            "trainer_state.json of Hugging Face's Trainer: the mean step",
            "a Trainer's state",
        ),
        "deepspeed": of_log(
            logs.sniff_deepspeed, logs.deepspeed, "DeepSpeed's throughput timer: rates", "DeepSpeed's log"
        ),
        "lightning": of_log(
            logs.sniff_lightning,
            logs.lightning,
            "metrics.csv of Lightning's CSVLogger: steps or rates",
            "Lightning's CSV",
        ),
        "osfmodel": Format(sniff_own, read_own, "a workload or cluster file of osfmodel itself"),
    },
    "osfmodel.formats",
    Format,
)


OSU = re.compile(r"^#\s*OSU\b[^\r\n]{0,80}", re.MULTILINE)
NCCL = re.compile(r"NCCL INFO|NCCL WARN|Test NCCL failure|# nThread |# Rank |# Using devices")
NEEDED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "csv-table": {
        "a size": tables.SIZES,
        "a time": tuple(tables.TIMES),
    },
    "csv-layers": {
        "a name": layers.NAMES,
        "a size": layers.BYTES,
        "a forward time": layers.FORWARD[:3],
        "a backward time": layers.BACKWARD[:3],
    },
}
MOST_COLUMNS = 12
FOREIGN: Sequence[tuple[re.Pattern[bytes], str]] = (
    (
        re.compile(rb'"schema"\s*:\s*"[^"]{0,40}chakra'),
        "is a Chakra execution trace in JSON, which is not read, as PyTorch's has no times: give torch.profiler's "
        "trace of the run, or the protobuf that Chakra's converter made of both",
    ),
    (
        re.compile(rb"/device:(?:TPU|GPU|CPU)|/host:(?:CPU|metadata)"),
        "is a profile of XLA, as JAX and torch_xla write it, which is not read: read are traces of torch.profiler and "
        "exports of Nsight Systems",
    ),
)
"""Kinds of files that are known and not read, by what is in their beginning, with the reason and what to give."""
ZIP = b"PK\x03\x04"


def unlike(content: bytes) -> str:
    """The reason why this content, unpacked, is not text; "" if it may be."""
    if content.startswith(ZIP):
        return "is a zip archive, which is not read: unpack it, and give the files in it, a folder or a tar of them"
    if not content.strip(b"\0"):
        return "holds nothing but zeros, as a tar archive of nothing does" if content else "is empty"
    return ""


def foreign(start: bytes) -> str:
    """The reason why a file that begins so is not read, if its kind is known; else ""."""
    return next((said for sign, said in FOREIGN if sign.search(start)), "")


def explained(head: str, known: Sequence[str]) -> str:
    """A clause on the file's likely kind, and on what is missing or should be done."""
    start = head.strip()
    if not start:
        return "is empty"
    if said := foreign(head.encode("utf-8", "replace")):
        return said
    if osu := OSU.search(head):
        title = osu[0].lstrip("# ").strip()
        return (
            f"is {title!r}, not a collective that is read: osu_allreduce, osu_reduce_scatter or osu_allgather is needed"
        )
    if NCCL.search(head) or PROGRAM.search(head):
        return (
            "is a log of nccl-tests or NCCL without the table of results (the line '#  size  count  type ...'): "
            "give the output of a test that ended"
        )
    columns = [name for name in columns_of(start) if name]
    if len(columns) > 1 and start[0] not in "{[<" and start.isprintable() | ("\n" in start):
        shown = ", ".join(columns[:MOST_COLUMNS])[:200] + (" ..." if len(columns) > MOST_COLUMNS else "")
        return f"has the columns {shown}: {'; '.join(_missing(columns, form) for form in NEEDED)}"
    return f"has no format that osfmodel reads ({', '.join(known)}); it begins {start[:60]!r}"


def _missing(columns: Sequence[str], form: str) -> str:
    present = dict.fromkeys(columns)
    missing = [
        f"{what} ({' or '.join(names[:3])})" for what, names in NEEDED[form].items() if pick(present, *names) is None
    ]
    return f"{form} needs {' and '.join(missing)}"
