"""The measured runs of others as the project keeps them: one file of profiles/measurements per source.

Called by make.py. Each function turns the published figures of one source into Measurements; where a throughput was
published, seconds per iteration = batch per worker x workers / throughput. Nothing is left out that is an iteration
time of data-parallel training, whether it can be predicted or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from osfmodel import Measurement, Source

Rows = Callable[[str], list[dict[str, str]]]


class Published(NamedTuple):
    """rows:   (path) -> the rows of a published CSV
    source: (path, what was done to it) -> provenance
    exact:  drops the rounding noise of a conversion
    """

    rows: Rows
    source: Callable[[str, str], Source]
    exact: Callable[[float], float]


METHODS = {"BSP-A2A": "single", "WFBP-A2A": "wfbp", "MG-WFBP": "mg-wfbp", "BSP-PS": "single-ps", "WFBP-PS": "wfbp-ps"}
PAPER_METHODS = {"WFBP": "wfbp", "SyncEASGD": "single", "MGWFBP": "mg-wfbp", "ASCWFBP": "asc-wfbp"}


def bcaffe(data: Published) -> Iterator[Measurement]:
    """B-Caffe on K80 nodes: two GPUs in each node, reduced inside the node before MPI."""
    path = "scaling/bcaffe/googlenet_resnet50_k80_throughput.csv"
    source = data.source(
        path,
        "images/s of all nodes; batch = images per node of 2 GPUs and iteration; iteration "
        "time = batch x nodes / images/s; one MPI rank per node",
    )
    plans = {"WFBP": "wfbp", "MG-WFBP": "mg-wfbp"}
    for row in data.rows(path):
        nodes, batch = int(row["n_nodes"]), int(row["batch_in_script"])
        name = "googlenet-k80-tensors" if row["model"] == "GoogLeNet" else "resnet50-k80"
        conditions = {"batch_size": str(batch), "images_per_s": row["images_per_s"], "method": row["method"]}
        yield Measurement(
            workload=name,
            cluster="k80-10gbe-log",
            plan=plans.get(row["method"], "single"),
            workers=nodes,
            samples=(data.exact(batch * nodes / float(row["images_per_s"])),),
            conditions=tuple(conditions.items()),
            source=source,
        )


def ddl_benchmarks(data: Published) -> Iterator[Measurement]:
    """PyTorch and Horovod with fusion off, grouped by the benchmark itself; means of 5 tries."""
    path = "scaling/ddl-benchmarks/results_2020-05-29.csv"
    source = data.source(path, "4 GPUs per node; iteration time = batch x workers / throughput, as is its deviation")
    names = {"ResNet-50": "resnet50-v100", "BERT-Base": "bert-base-seq64-reconstructed",
             "BERT-Large": "bert-large-seq64-reconstructed"}  # fmt: skip
    networks = {"10GbE with TCP/IP": "10gbe", "100GbIB with RDMA": "100gib"}
    for row in data.rows(path):
        batch, workers = int(row["batch_per_gpu"]), int(row["n_gpus"])
        rate = float(row["throughput_samples_per_s"])
        time = batch * workers / rate
        conditions = {"batch_size": str(batch), "network": row["network"], "method": row["method"]}
        yield Measurement(
            workload=names[row["model"]],
            cluster=f"ddl-benchmarks-{networks.get(row['network'], '100gbe')}",
            plan=METHODS[row["method"]],
            workers=workers,
            samples=(data.exact(time),),
            conditions=tuple(conditions.items()),
            source=source,
            deviation=data.exact(time * float(row["std"]) / rate) if row["std"] else None,
        )


def pollux(model: str, workload: str, data: Published) -> Iterator[Measurement]:
    """AdaptDL on g4dn.12xlarge: how many GPUs on each node, and the batch of each."""
    for kind in ("placements", "scalability"):
        path = f"scaling/pollux-adaptdl/{model}_{kind}.csv"
        source = data.source(f"scaling/pollux-adaptdl/{model}_placements.csv", "step_time of both files as published")
        for row in data.rows(path):
            placement = row.get("placement") or f"{row['num_replicas']}/{row['num_nodes']}"
            workers = sum(map(int, placement)) if kind == "placements" else int(row["num_replicas"])
            conditions = {
                "file": kind,
                "placement": placement,
                "batch_size": row["local_bsz"],
                "sync_time_s": f"{float(row['sync_time']):.6g}",
            }
            yield Measurement(
                workload=workload,
                cluster="t4-g4dn",
                plan="ddp",
                workers=workers,
                samples=(float(f"{float(row['step_time']):.6g}"),),
                conditions=tuple(conditions.items()),
                source=source,
            )


def pytorch_ddp(data: Published) -> Iterator[Measurement]:
    """The README of PyTorch's DDP benchmark: medians with 25 MB buckets, 75th percentiles with 1 MB buckets."""
    names = {"resnet50": "resnet50-v100", "resnet101": "resnet101-reconstructed",
             "resnext50_32x4d": "resnext50-32x4d-reconstructed",
             "resnext101_32x8d": "resnext101-32x8d-reconstructed"}  # fmt: skip
    path = "scaling/pytorch-ddp-readme/ddp_v100_iteration_times.csv"
    source = data.source(path, "median with 25 MB buckets; 75th percentile with 1 MB, printed to 1 ms")
    for row in data.rows(path):
        conditions = {"batch_size": row["batch_per_gpu"], "bucket_cap_mb": "25", "layout": row["layout"]}
        yield Measurement(
            workload=names[row["model"]],
            cluster="dgx1-v100-ib",
            plan="none" if row["layout"] == "no ddp" else "ddp",
            workers=int(row["n_gpus"]),
            samples=(float(row["p50_s"]),),
            conditions=tuple(conditions.items()),
            source=source,
        )
    for row in data.rows("scaling/pytorch-ddp-readme/ddp_v100_bucket1_vs_25.csv"):
        change = row["p75_throughput_change_vs_25MB_pct"]
        conditions = {"batch_size": row["batch_per_gpu"], "bucket_cap_mb": "1", "throughput_change_percent": change}
        yield Measurement(
            workload=names[row["model"]],
            cluster="dgx1-v100-ib",
            plan="ddp-1mib",
            workers=int(row["n_gpus"]),
            samples=(float(row["p75_s"]),),
            conditions=tuple(conditions.items()),
            source=source,
        )


DLPERF = {
    "dlperf-pytorch": ("PyTorch 1.6",),
    "dlperf-ngc-pytorch": ("NGC PyTorch",),
    "dlperf-tensorflow": ("NGC TF1.15",),
    "dlperf-mxnet": ("NGC MXNet", "MXNet gluon-cv", "MXNet gluon-nlp"),
}
"""Source -> frameworks as DLPerf names them. Its runs under data parallelism that osfmodel does not know (MindSpore,
Paddle's fleet, TensorFlow's MultiWorkerMirroredStrategy) are not kept."""


def dlperf(frameworks: Sequence[str], data: Published) -> Iterator[Measurement]:
    """OneFlow's DLPerf: 1 to 4 machines of 8 V100 with one 100 Gb/s InfiniBand adapter each."""
    path = "scaling/dlperf/dlperf_v100_scaling.csv"
    source = data.source(path, "iteration time = batch per GPU x GPUs / samples per second")
    names = {"ResNet-50": "resnet50-v100", "BERT-base": "bert-base-seq64-reconstructed"}
    for row in data.rows(path):
        if row["framework"] not in frameworks:
            continue
        options = ", ".join(filter(None, (row["xla"], row["flags"])))
        conditions = {
            "framework": row["framework"],
            "precision": row["precision"],
            "batch_size": row["batch_per_gpu"],
            **({"option": options} if options else {}),
        }
        batch, workers = int(row["batch_per_gpu"]), int(row["n_gpus"])
        yield Measurement(
            workload=names[row["model"]],
            cluster="nccl:v100x8,100Gbps/node,ib",
            plan="horovod" if row["dp"] == "Horovod" else "ddp",
            workers=workers,
            samples=(data.exact(batch * workers / float(row["samples_per_s"])),),
            conditions=tuple(conditions.items()),
            source=source,
        )


def gh200_ddp(data: Published) -> Iterator[Measurement]:
    """PyTorch's DDP benchmark on GH200, four in a node; times from the printed rate, which has more digits."""
    path = "scaling/pytorch-ddp-readme/ddp_gh200_slingshot.csv"
    source = data.source(path, "iteration time = batch / median images per second of a GPU")
    names = {"resnet50": "resnet50-h100", "resnet101": "resnet101-reconstructed"}
    for row in data.rows(path):
        batch = row["batch_per_gpu"]
        yield Measurement(
            workload=names[row["model"]],
            cluster="nccl:gh200x4,200Gbps,roce",
            plan="none" if row["layout"] == "no ddp" else "ddp",
            workers=int(row["n_gpus"]),
            samples=(data.exact(int(batch) / float(row["images_per_s_per_gpu_p50"])),),
            conditions=(("batch_size", batch), ("bucket_cap_mb", row["bucket_cap_mb"]), ("layout", row["layout"])),
            source=source,
        )


def gavel(data: Published) -> Iterator[Measurement]:
    """Gavel's isolated throughputs of ResNets in one cloud machine; the steps of all GPUs together are counted."""
    path = "scaling/gavel/isolated_throughputs.csv"
    source = data.source(path, "iteration time = GPUs / steps per second; GPUs of one machine")
    names = {"ResNet-50": "resnet50-v100", "ResNet-18": "resnet18-cifar10-reconstructed"}
    clusters = {"k80": "nccl:k80x8", "p100": "nccl:p100x8", "v100": "nccl:v100x8"}
    for row in data.rows(path):
        if row["model"] not in names or row["placement"] != "consolidated" or not float(row["steps_per_s"]):
            continue
        workers = int(row["n_gpus"])
        yield Measurement(
            workload=names[row["model"]],
            cluster=clusters[row["gpu"]],
            plan="ddp",
            workers=workers,
            samples=(data.exact(workers / float(row["steps_per_s"])),),
            conditions=(("gpu", row["gpu"].upper()), ("batch_size", row["batch"])),
            source=source,
        )


def horovod_lowbandwidth(data: Published) -> Iterator[Measurement]:
    """Horovod between V100 nodes whose links were slowed, with real data loading."""
    path = "scaling/horovod/lowbandwidth_4node_v100.csv"
    source = data.source(path, "mean batch time over 90 x 50 batches")
    names = {"ResNet-50": "resnet50-v100", "VGG-16": "vgg16-reconstructed"}
    for row in data.rows(path):
        conditions = {"batch_size": row["batch_per_gpu"], "setup": row["setup"]}
        yield Measurement(
            workload=names[row["model"]],
            cluster="v100-low-bandwidth",
            plan="horovod",
            workers=int(row["n_gpus"]),
            samples=(data.exact(float(row["batch_ms"]) * 1e-3),),
            conditions=tuple(conditions.items()),
            source=source,
        )


MOSAICML = {
    "2023-04": "sharded/mosaicml-llm-foundry/mosaicgpt_training_2023-04.csv",
    "2023-01": "sharded/mosaicml-llm-foundry/mosaicgpt_training_torch1.12_2023-01.csv",
}
MOSAICML_PLANS = {"PURE": "fsdp2:bf16", "DEFAULT": "fsdp2:fp32,reduce=bf16"}
"""Types in which FSDP gathers and reduces; those of DEFAULT are of January 2023."""


def mosaicml(data: Published) -> Iterator[Measurement]:
    """MosaicML's llm-foundry: GPT-like models on A100, nodes of 8 with 1600 Gbit/s of RoCE."""
    pace = "iteration time = samples x tokens / (tokens per second of a GPU x GPUs)"
    source = data.source(MOSAICML["2023-04"], f"{pace}; runs of 2023-01 are in the same file @ bf232bf39 (torch 1.12)")
    for system, path in MOSAICML.items():
        for row in data.rows(path):
            workers, sequence = int(row["gpus"]), int(row["seq_len_tokens"])
            tokens = int(row["global_batch_samples"]) * sequence
            conditions = {
                "system": system,
                "gpu": f"A100-{row['gpu'].removeprefix('a100_').upper()}",
                "sequence": str(sequence),
                "batch_size": row["microbatch_samples"],
                "micro_batches": row["grad_accumulation"],
                "recomputed": "yes" if row["activation_checkpointing"] == "True" else "no",
            }
            yield Measurement(
                workload=row["model"].lower(),
                cluster="nccl:a100x8,1600Gbps/node,roce",
                plan=MOSAICML_PLANS[row["fsdp_mixed_precision"]],
                workers=workers,
                samples=(data.exact(tokens / (float(row["throughput_tokens_per_s_per_gpu"]) * workers)),),
                conditions=tuple(conditions.items()),
                source=source,
            )


def modalities(data: Published) -> Iterator[Measurement]:
    """Modalities on Leonardo Booster: nodes of 4 A100 with 400 Gbit/s of InfiniBand."""
    path = "sharded/modalities/scaling_leonardo.csv"
    source = data.source(path, "iteration time = samples of a step / samples per second")
    for row in data.rows(path):
        conditions = {
            "gpu": "A100-64GB",
            "sequence": row["seq_len_tokens"],
            "batch_size": row["microbatch_samples"],
            "micro_batches": row["grad_accumulation"],
        }
        yield Measurement(
            workload=f"modalities-{row['params_billion']}b",
            cluster="nccl:a100x4,400Gbps/node,ib",
            plan="hsdp:bf16" if row["sharding"] == "HYBRID_SHARD" else "fsdp2:bf16",
            workers=int(row["gpus"]),
            samples=(data.exact(int(row["global_batch_samples"]) / float(row["throughput_samples_per_s"])),),
            conditions=tuple(conditions.items()),
            source=source,
        )


def internevo(data: Published) -> Iterator[Measurement]:
    """InternEvo: InternLM-7B on nodes of 8 A100 with four 100 Gbit/s of RoCE."""
    path = "sharded/internevo/train_performance_7b.csv"
    source = data.source(path, "iteration time = tokens of a GPU in a step / tokens per second of a GPU")
    for row in data.rows(path):
        batch, micro_batches, parallel = (
            int(row[name]) for name in ("microbatch_samples", "micro_num", "tensor_parallel")
        )
        tokens = batch * micro_batches * int(row["seq_len_tokens"]) / parallel
        conditions = {
            "gpu": "A100-80GB",
            "sequence": row["seq_len_tokens"],
            "batch_size": row["microbatch_samples"],
            "micro_batches": row["micro_num"],
            "zero_group": "all" if row["zero1_group"] == "-1" else row["zero1_group"],
            "tensor_parallel": row["tensor_parallel"],
            "packed": "yes" if row["pack_sample_into_one"] == "True" else "no",
            "recomputed": "yes" if row["activation_checkpointing"] == "True" else "no",
        }
        yield Measurement(
            workload="internlm-7b",
            cluster="nccl:a100x8,400Gbps/node,roce",
            plan="zero-1-owners",
            workers=int(row["gpus"]),
            samples=(data.exact(tokens / float(row["tokens_per_gpu_per_s"])),),
            conditions=tuple(conditions.items()),
            source=source,
        )


def fms_fsdp(data: Published) -> Iterator[Measurement]:
    """IBM's fms-fsdp: Llama 2 on nodes of 8 A100 or H100."""
    path = "sharded/fms-fsdp/throughput.csv"
    source = data.source(path, "iteration time = tokens of a GPU in a step / tokens per second of a GPU")
    for row in data.rows(path):
        gpu, workers = row["gpu"].replace(" ", "-"), int(row["gpus"])
        tokens = int(row["microbatch_samples"]) * int(row["seq_len_tokens"])
        conditions = {
            "gpu": gpu,
            "sequence": row["seq_len_tokens"],
            "batch_size": row["microbatch_samples"],
            "micro_batches": "1",
            "recomputed": f"{3 * (float(row['hfu']) / float(row['mfu']) - 1):.3f}",
        }
        yield Measurement(
            workload=row["model"].lower().replace(" ", "-"),
            cluster=f"nccl:{gpu.partition('-')[0].lower()}x8,{row['between_nodes_gbps']}Gbps/node",
            plan="hsdp:bf16" if row["sharding"] == "HSDP" else "fsdp2:bf16",
            workers=workers,
            samples=(data.exact(tokens / float(row["tokens_per_gpu_per_s"])),),
            conditions=tuple(conditions.items()),
            source=source,
        )


def papers(data: Published) -> Iterator[Measurement]:
    """Iteration times printed in MG-WFBP (TPDS'21, Fig. 9) and ASC-WFBP (INFOCOM'21), with their compute columns."""
    rows = [row for row in data.rows("targets.csv") if row["gpus"][:2].isdigit()]
    compute = {_setting(row): row["value"] for row in rows if row["metric"] == "compute_s"}
    source = data.source("targets.csv", "seconds per iteration as in the authors' plot scripts")
    for row in rows:
        metric, _, method = row["metric"].partition(":")
        if metric != "iter_s":
            continue
        network, _, precision = row["network"].partition(" ")
        conditions = {
            "system": row["system"],
            "network": network,
            "precision": precision or "fp32",
            "batch_size": row["batch"],
            "compute_time_s": compute[_setting(row)],
        }
        yield Measurement(
            workload=f"{row['model'].lower().replace('resnet-', 'resnet').replace('densenet-', 'densenet')}"
            f"{'-seq64' if row['model'].startswith('BERT') else ''}-reconstructed",
            cluster="v100-56gib" if network == "56GbIB" else "v100-10gbe",
            plan=PAPER_METHODS[method],
            workers=int(row["gpus"].split()[0]),
            samples=(data.exact(float(row["value"])),),
            conditions=tuple(conditions.items()),
            source=source,
        )


def _setting(row: dict[str, str]) -> tuple[str, ...]:
    return row["system"], row["model"], row["gpus"], row["network"]


SOURCES: dict[str, Callable[[Published], Iterator[Measurement]]] = {
    "bcaffe": bcaffe,
    "ddl-benchmarks": ddl_benchmarks,
    "pollux-imagenet": partial(pollux, "imagenet", "resnet50-v100"),
    "pollux-cifar10": partial(pollux, "cifar10", "resnet18-cifar10-reconstructed"),
    "pollux-deepspeech2": partial(pollux, "deepspeech2", "deepspeech2-reconstructed"),
    "pollux-ncf": partial(pollux, "ncf", "ncf-reconstructed"),
    "pytorch-ddp": pytorch_ddp,
    "gh200-ddp": gh200_ddp,
    **{name: partial(dlperf, frameworks) for name, frameworks in DLPERF.items()},
    "gavel": gavel,
    "horovod-lowbandwidth": horovod_lowbandwidth,
    "mosaicml-2023": mosaicml,
    "modalities-leonardo": modalities,
    "internevo": internevo,
    "fms-fsdp": fms_fsdp,
    "papers": papers,
}
