"""Published and own measurements, and the errors of predictions against them.

To add a source: its runs as ``profiles/measurements/NAME.json``, a module with ``judge(measurements)``, and one line
here. The tests run over the table.
"""

from __future__ import annotations

from collections.abc import Mapping

from osfmodel.ledger.recipe import Recipe
from osfmodel.ledger.results import MEMORY, Row, Verdict
from osfmodel.ledger.sources import (
    anchored,
    bcaffe,
    ddl_benchmarks,
    decoders,
    emulated_ddp,
    low_bandwidth,
    papers,
    peak_memory,
    pollux,
    published,
    pytorch_ddp,
)

__all__ = ["LEDGER", "Recipe", "Row", "Verdict"]

LEDGER: Mapping[str, Recipe] = {
    "bcaffe": Recipe(
        bcaffe.judge,
        0.05,
        "GoogLeNet on K80 nodes over 10 GbE, with the runs' own all-reduce times",
    ),
    "ddl-benchmarks": Recipe(
        ddl_benchmarks.judge,
        0.025,
        "MG-WFBP from one-shot and per-tensor runs, ResNet-50 and BERT, 2 networks",
        jobs=ddl_benchmarks.jobs,
    ),
    "pollux-imagenet": Recipe(
        pollux.judge_imagenet,
        0.04,
        "ResNet-50 under AdaptDL on T4 GPUs: larger batches from the smallest, 143 placements",
        jobs=pollux.jobs(pollux.imagenet),
        group="pollux",
    ),
    "pollux-cifar10": Recipe(
        pollux.judge_cifar10,
        0.08,
        "ResNet-18 on small images, likewise; reconstructed tensor profile",
        jobs=pollux.jobs(pollux.cifar10),
        group="pollux",
    ),
    "pollux-deepspeech2": Recipe(
        pollux.judge_deepspeech2,
        0.06,
        "DeepSpeech2, likewise; reconstructed tensor profile",
        jobs=pollux.jobs(pollux.deepspeech2),
        group="pollux",
    ),
    "pollux-ncf": Recipe(
        pollux.judge_ncf,
        0.07,
        "neural collaborative filtering, likewise; reconstructed",
        jobs=pollux.jobs(pollux.ncf),
        group="pollux",
    ),
    "pytorch-ddp": Recipe(
        pytorch_ddp.judge,
        0.04,
        "DDP on V100 with buckets of 25 MB and 1 MB: 2 to 16 GPUs from runs on one",
        jobs=pytorch_ddp.jobs,
    ),
    "horovod-lowbandwidth": Recipe(
        low_bandwidth.judge,
        0.09,
        "ResNet-50 and VGG-16 between 4 nodes at 2.5 and 5 Gb/s, nothing fitted",
        jobs=low_bandwidth.jobs,
    ),
    "dlperf-pytorch": Recipe(
        published.judge, 0.1, "ResNet-50 under DDP of PyTorch 1.6 on 2 to 32 V100", jobs=published.jobs, group="dlperf"
    ),
    "dlperf-ngc-pytorch": Recipe(
        published.judge,
        0.1,
        "ResNet-50 and BERT under DDP in NVIDIA's containers, likewise",
        jobs=published.jobs,
        group="dlperf",
    ),
    "dlperf-tensorflow": Recipe(
        published.judge,
        0.1,
        "ResNet-50 and BERT under Horovod with TensorFlow, likewise",
        jobs=published.jobs,
        group="dlperf",
    ),
    "dlperf-mxnet": Recipe(
        published.judge,
        0.1,
        "ResNet-50 and BERT under Horovod with MXNet, likewise",
        jobs=published.jobs,
        group="dlperf",
    ),
    "gh200-ddp": Recipe(published.judge, 0.1, "ResNets under DDP on 1 to 8 GH200", jobs=published.jobs),
    "gavel": Recipe(published.judge, 0.1, "ResNets on 2 to 8 K80, P100 and V100 of a machine", jobs=published.jobs),
    "mosaicml-2023": Recipe(
        anchored.judge(decoders.mosaicml, decoders.MOSAICML_FITTED_ON),
        0.03,
        "GPT-like models under FSDP, 8 to 256 A100 from the fewest",
        jobs=anchored.jobs(decoders.mosaicml),
    ),
    "modalities-leonardo": Recipe(
        anchored.judge(decoders.modalities, decoders.MODALITIES_FITTED_ON),
        0.04,
        "Llama-like models under FSDP and HSDP, 8 to 256 A100 from 8",
        jobs=anchored.jobs(decoders.modalities),
    ),
    "internevo": Recipe(
        anchored.judge(decoders.internevo, decoders.INTERNEVO_FITTED_ON),
        0.03,
        "InternLM-7B under ZeRO-1, 16 to 1,024 A100 from 8",
        jobs=anchored.jobs(decoders.internevo),
    ),
    "fms-fsdp": Recipe(
        anchored.judge(decoders.fms_fsdp, decoders.FMS_FSDP_FITTED_ON),
        0.11,
        "Llama 2 of 13B to 70B under FSDP from 7B, on A100 and H100",
    ),
    "emulated-ddp": Recipe(
        emulated_ddp.judge,
        0.01,
        "DDP with gloo between emulated hosts, replays of 3 workloads, nothing fitted",
        jobs=emulated_ddp.jobs,
    ),
    "emulated-runtime": Recipe(
        emulated_ddp.judge,
        0.03,
        "the executor beside DDP between emulated hosts, own and published plans, likewise",
        jobs=emulated_ddp.jobs,
    ),
    "emulated-horovod": Recipe(
        emulated_ddp.judge,
        0.01,
        "Horovod with gloo between emulated hosts, thresholds and cycle times, likewise",
        jobs=emulated_ddp.jobs,
    ),
    "emulated-sparse": Recipe(
        emulated_ddp.judge,
        0.015,
        "sparse buckets in both forms between emulated hosts, likewise",
        jobs=emulated_ddp.jobs,
    ),
    "emulated-memory": Recipe(
        emulated_ddp.judge,
        0.01,
        "plans and batches of osf tune --memory between emulated hosts, likewise",
        jobs=emulated_ddp.jobs,
    ),
    "papers": Recipe(papers.judge, 0.10, "speed-ups as published: MG-WFBP on 16 and ASC-WFBP on 32 GPUs, by replay"),
    "memory": Recipe(
        peak_memory.judge, 0.004, "peak memory of real models, by PyTorch's tracker, from one profile each", MEMORY
    ),
}
