"""IMPORT_FORMATS: the formats of other tools' files that are read, the type of its rows, and our own files as one.

osfmodel's own workload and cluster files can be imported like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from osfmodel.formats import kineto, layers, memory_snapshot, nsight, topology
from osfmodel.formats.collectives import chakra, flight_recorder, inspector, nccl_tests, tables
from osfmodel.formats.horovod import files
from osfmodel.formats.source_text import Files, Hints, Noun, Text, content, parse
from osfmodel.formats.traces.cautions import nouns_of
from osfmodel.formats.trainers import lightning, logs
from osfmodel.formats.trainers.steps import LoggedRun, measurement_of


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
        return [_told(decode_workload(content(text)), hints)]
    if kind == "cluster":
        cluster = decode_cluster(content(text))
        lookup.require(cluster.cost_model, COST_MODELS, "cost model")
        return [cluster]
    raise DataError(f"is a file of osfmodel, of kind {kind!s:.40}: only workloads and clusters are imported")


def _told(workload: Workload, hints: Hints) -> Workload:
    """The workload with the user's batch size, if the file has none."""
    return workload if workload.batch_size is not None else replace(workload, batch_size=hints.batch_size)


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
            lightning.sniff, lightning.log, "metrics.csv of Lightning's CSVLogger: steps or rates", "Lightning's CSV"
        ),
        "osfmodel": Format(sniff_own, read_own, "a workload or cluster file of osfmodel itself"),
    },
    "osfmodel.formats",
    Format,
)
