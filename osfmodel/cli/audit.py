"""The audit of a job's file by ``osf scale``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from osfmodel.cli.app import line, warn
from osfmodel.cli.options import Subject, load_subject, parse_workers
from osfmodel.cli.scaling import goals_of, options_of
from osfmodel.cost.nccl_words import gpu_in_words
from osfmodel.counting.groups import DEGREES, Parallelism
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.version import __version__
from osfmodel.formats.jobs.job import JobConfig
from osfmodel.planning.scaling.goals import Goals
from osfmodel.planning.scaling.jobs import model_named, words_of
from osfmodel.planning.scaling.scale import ScaleOptions
from osfmodel.planning.what_if import WhatIf
from osfmodel.show.scale.audit import Audited

MODEL, CLUSTER, WORKERS = "--model llama3-8b", "--cluster nccl:h100x8,400Gbps,ib", "--workers 64"


class AuditQuestion(NamedTuple):
    """The arguments of ``planning.scaling.audit.audit``."""

    job: JobConfig
    words: str
    cluster: Cluster
    gpus: int
    options: ScaleOptions
    limits: str


def audit_asked(
    job: JobConfig, subject: Subject, machines: Sequence[str], prices: Sequence[float], asked: Mapping[str, Any]
) -> AuditQuestion:
    """The question for the audit of a job; options go before what its file says.

    Raises UsageError for options that no audit has, and one that names all that file and options leave open.
    """
    _require_possible(subject, machines, prices, asked)
    job = _with_options(job, subject, asked)
    file, cluster_name = subject.workload_name, subject.cluster_name
    gpu = gpu_in_words(cluster_name or "")
    lacking = [
        *([] if asked["model"] or model_named(job) else [f"the model{f', as {job.model}' * bool(job.model)}: {MODEL}"]),
        *([] if cluster_name else [f"the GPU and the network: {CLUSTER}"]),
        *([f"the GPU, which {cluster_name} does not name: {CLUSTER}"] if cluster_name and not gpu else []),
        *([] if asked["workers"] or job.gpus else [f"the number of GPUs: {WORKERS}"]),
    ]
    if lacking:
        raise UsageError(f"{file} leaves open what is needed: give {'; '.join(lacking)}")
    words = words_of(job, gpu, asked["model"] or "")
    kinds = {"seq": "the tokens of a sample: the model's usual are taken (--model MODEL,seqN)",
             "batch": "the samples of a micro-batch: 1 is taken (--batch-size N)"}  # fmt: skip
    open_ = [said for kind, said in kinds.items() if not any(part.startswith(kind) for part in words.split(",")[1:])]
    job = replace(job, notes=(*job.notes, *(f"the file does not say {said}" for said in open_)))
    workload, cluster = load_subject(replace(subject, workload_name=words))
    counts = parse_workers(asked["workers"], cluster) if asked["workers"] else [job.gpus or 0]
    if len(counts) != 1:
        raise UsageError(f"--workers {asked['workers']}: an audit is of one number of GPUs: give {WORKERS}")
    price = prices[0] if prices else None
    limited = {**asked, "plan_names": (), "global_batch": None}
    options = options_of(replace(subject.what_if, accumulate=1), workload, price, limited, Parallelism())
    return AuditQuestion(job, words, cluster, counts[0], options, asked["layout"] or "any")


def _with_options(job: JobConfig, subject: Subject, asked: Mapping[str, Any]) -> JobConfig:
    """The job with what options say otherwise."""
    groups = {kind: asked[option][0] for kind, option in DEGREES.items() if asked[option]}
    said = {"batch": next(iter(asked["batch_size"]), None), "whole": asked["global_batch"]}
    said["accumulate"] = subject.what_if.accumulate if subject.what_if.accumulate > 1 else None
    if said["accumulate"] and not said["whole"]:
        job = replace(job, whole=None)
    plan = {"plan": asked["plan_names"][0]} if asked["plan_names"] else {}
    others = {name: value for name, value in said.items() if value is not None}
    return replace(job, groups={**job.groups, **groups}, **plan, **others)


def _require_possible(
    subject: Subject, machines: Sequence[str], prices: Sequence[float], asked: Mapping[str, Any]
) -> None:
    """Raise UsageError for options that no audit has."""
    network = replace(subject.what_if, accumulate=1, bandwidth=WhatIf().bandwidth, latency=WhatIf().latency)
    refused = {
        "--for": asked["target"],
        "--anchor": asked["anchors"],
        "a goal": goals_of(asked) != Goals(),
        network.options or "what-if": network != WhatIf(),
        "all but one --cluster": machines,
        "all but one --price": len(prices) > 1,
        "all but one --plan": len(asked["plan_names"]) > 1,
        **{
            f"all but one --{name.replace('_', '-')}": len(asked[name]) > 1
            for name in (*DEGREES.values(), "batch_size")
        },
    }
    for option, given in refused.items():
        if given:
            raise UsageError(f"{subject.workload_name} is the file of a job, which is audited: leave {option} out")


def write_page(audited: Audited, form: str, output: str) -> None:
    """Write the page. Raises UsageError for a picture."""
    if form != "page":
        raise UsageError(f"-o {output}: an audit has no picture: give -o audit.html, .json or .csv")
    profiles.write_text(output, audited.page(__version__))
    line(f"wrote {output} ({form})")
    for warning in audited.warnings():
        warn(warning)
