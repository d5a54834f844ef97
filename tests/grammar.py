"""Commands that a user could type, drawn from a grammar of words, options and files, and a judge of the answers.

Half of the commands are as the help says, the others have one near miss or two. The judge types what a refusal
proposes, up to STEPS times, until there is an answer.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

import click

from osfmodel.cli.app import main
from tests import stand_ins
from tests.commands import invoke


class Noun(NamedTuple):
    """A kind of thing that a word of a command line names.

    valid: values that are meant to be taken
    near:  near misses: misspelt, in another unit or order, of another framework, out of range, a file of another kind
    """

    valid: Sequence[str]
    near: Sequence[str] = ()


MODELS = ("resnet50", "bert-base", "gpt2", "vit-b16", "pythia-160m", "t5-small")
GPUS = ("h100", "a100", "v100", "a100-40gb", "h100-pcie", "l40s", "mi300x", "b200", "rtx4090", "h20", "gb300", "t4")
OTHER_GPUS = (
    "H100", "A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "h100-sxm", "a100_80gb", "4090", "v100-32gb", "V100-SXM2",
    "gtx1080", "tpu-v4", "a1000", "h1000", "gaudi2", "b100", "p40", "h100x", "rtx-3090", "RTX 6000 Ada",
)  # fmt: skip
FILES = (
    "model.json", "cluster.json", "runs.json", "rank0.json", "nccl-tests.log", "timeline.json",
    "before.csv", "grid.yaml", "traces", "traces.tar.gz", "nothing.json", "plan.json",
)  # fmt: skip
"""Files of every kind, one of them missing: those of tests/stand_ins.py."""

NOUNS: Mapping[str, Noun] = {
    "workload": Noun(
        ("resnet50-v100", "googlenet-k80", "resnet50-memory", "vgg16-pipedream", "model.json", "bert-cpu",
         *(f"{model}:h100,batch8" for model in MODELS), *(f"gpt2:{gpu},batch2" for gpu in GPUS),
         "gpt2:a100,seq512,batch4,bf16,ac=full", "resnet50:v100,batch32,fp16", "bert-base:h100,batch4,fp8,compile",
         "gpt2:a100,offload=optimizer+activations", "gpt2:b200,mxfp8,te", "gpt2:h100,fp8=rowwise", "gpt2:gb300,nvfp4"),
        ("resnet-50", "resnet50", "ResNet50-V100", "gpt2", "bert", "llama3-8b", "gpt-2:h100", "GPT2:H100,batch2",
         "bert_base:h100", "bert-base-uncased:h100", "meta-llama/Llama-3.1-8B:h100", "gpt2:h100,fp4", "gpt2:t4,fp8",
         "gpt2:h100,nvfp4", "gpt2:h100,offload=all",
         "gpt2:h100,bs8", "gpt2:h100,batch=8", "gpt2:h100,float16", "gpt2:h100,seq0", "gpt2:h100,ac=yes",
         "gpt2:h100,batch8,batch4", "resnet50:h100,seq128", "gpt2,h100", "gpt2:h100,b8", "gpt2:h100,seq=512",
         "gpt2@h100", "gpt2:h100,bfloat16", "gpt2:", ":h100", "gpt2:h100 batch8", "gpt2:h100;batch8",
         "gpt2:h100,micro-batch8", "gpt2:h100,amp", "gpt2:h100,full", "vgg16:h100", "mobilenet:h100",
         *(f"gpt2:{gpu},batch2" for gpu in OTHER_GPUS), *FILES),
    ),
    "cluster": Noun(
        ("v100-10gbe", "ring:50us,10Gbps", "nccl:h100x8,400Gbps", "nccl:a100x8,200Gbps,ib", "cluster.json",
         "hierarchical:8,5us,200GB/s,50us,25Gbps", "double-binary-tree:10us,100Gbps", "nccl:v100x8,100Gbps/node",
         "k80-10gbe-ring", "nccl:h100x8", "azure-a100-hdr", *(f"nccl:{gpu}x8,100Gbps" for gpu in GPUS)),
        ("v100-10gb", "V100-10GbE", "ring", "ring:10Gbps,50us", "ring:50us", "ring:50,10Gbps", "ring:50us,10",
         "ring:50us,10Gb", "ring:50us,1.25GB", "ring:50us,10gbit/s", "ring:50us,10Gbps,8", "tree:50us,10Gbps",
         "nccl:8xh100,400Gbps", "nccl:h100,400Gbps", "h100x8", "8xh100", "nccl:h100x8,400Gbps,infiniband",
         "nccl:h100x8,400Gbps,InfiniBand", "nccl:h100x8,400G", "nccl:h100x8,50GB/s", "nccl:h100x8,ndr", "dgx-h100",
         "nccl:h100x8,400Gbps,rocev2", "nccl:h100x8,400Gbps,ethernet", "nccl:h100x8,400Gbps/nic", "p4d.24xlarge",
         "nccl:h100x8,nvlink,400Gbps", "nccl:h100x0,400Gbps", "nccl:h100x8,0Gbps", "hierarchical:5us,200GB/s",
         "tabulated:50us,10Gbps", "ring:-5us,10Gbps", "ring:50us;10Gbps", "nccl:h100x8,efa", "NCCL:h100x8,400Gbps",
         "ring:50 us,10 Gbps", "ring:50us,10Gbps/node", "ring:50us,10GbE", "nccl:h100x8,400Gbps,ib,roce",
         "ring:50µs,10Gbps", "nccl:h100x8,3.2Tbps/node", "nccl:h100x8,8x400Gbps", "ring:0.05ms,1.25GBps",
         *(f"nccl:{gpu}x8,100Gbps" for gpu in OTHER_GPUS), *FILES),
    ),
    "workers": Noun(
        ("16", "8", "4..16", "8,32", "64"),
        ("0", "-8", "8-64", "8:64", "16..4", "eight", "8x8", "1e2", "2.5", "4...64", "8 16", "100000000", "3", "8;16",
         "4..", "1", "8, 16", "16gpus", "2^4"),
    ),
    "plan": Noun(
        ("ddp", "wfbp", "optimal", "fsdp2", "zero-2", "cap:25MiB", "horovod", "hsdp", "single", "mg-wfbp", "cap:best",
         "horovod:64MiB,5ms", "fsdp2:2,keep", "zero1", "FULL_SHARD", "planned", "byteps", "sparse:1%,cap:25MiB"),
        ("dpp", "DDP", "zero4", "zero-infinity", "fsdp3", "ddp:25MiB", "cap:25", "cap:25mb", "cap:0MiB", "cap:",
            "gpipe",
         "horovod:64MiB", "horovod:5ms,64MiB", "sparse:cap:25MiB", "sparse:150%,ddp", "sparse:1%", "fsdp2:keeep",
             "best",
         "deepspeed_stage_2", "allreduce", "pipeline", "megatron-lm", "torch.ddp", "fsdp:2", "colossalai",
             "osf:adaptiv",
         "wfpb", "mgwfbp", "optimum", "hsdp:4", "Hybrid_Shard", "dear", "bytescheduler", "topk", "none", "all",
         "cap:25M", "cap:best,ddp", "horovod:bst", "zero3_offload", *FILES),
    ),
    "target": Noun(
        ("ddp", "horovod", "deepspeed", "fsdp2", "runtime", "megatron", "torchtitan", "byteps", "zero-3", "lightning"),
        ("pytorch", "DDP", "fsdp", "zero2", "deepspeed_stage_3", "tensorflow", "jax", "colossalai", "horovd", "optimal",
         "wfbp", "hsdp", "Megatron-LM", "accelerat", "trainer", "mosaic", "nemo", "torch", "any", "fsdp1", "cap:25MiB"),
    ),
    "size": Noun(
        ("64MiB", "80GB", "16GiB", "25MB", "2.7GiB"),
        ("64", "64M", "64mb", "80 GB", "80gib", "64Mb", "80Gbit", "0MiB", "-1GiB", "many", "64MegaBytes", "1e3MiB",
         "80G", "1B", "64mbit", "1,024MiB", "80GBs", "64 mebibytes", "1PB"),
    ),
    "time": Noun(
        ("800ms", "10us", "1.5s", "36h", "10d"),
        ("800", "800 ms", "800msec", "1.5sec", "10usec", "10µs", "2w", "1h30m", "-5ms", "soon", "0s", "10m", "5M",
            "1e-3s",
         "500millis", "5:00", "1 month", "3y", "10US", "2hours"),
    ),
    "rate": Noun(("10Gbps", "1.25GB/s", "25Gbps"), ("10G", "10Gb", "10GB", "10", "10gbps", "10Gbit", "10Gb/s",
        "10 Gbps",
                 "0Gbps", "-1Gbps", "10GbE", "10GBps", "10Gib/s", "10Mbps", "10GiB/s", "1e1Gbps", "10gb", "10T",
                     "fast")),
    "architecture": Noun((*MODELS, "llama3-8b", "qwen3-4b"), ("GPT2", "gpt-2", "bert_base", "bert-base-uncased",
        "ResNet50",
                    "resnet-50", "llama-3-8b", "Meta-Llama-3-8B", "Qwen/Qwen3-4B", "pythia-160M", "mobilenet", "vit")),
    "change": Noun(("x2", "25Gbps", "x0.5"), ("2x", "2", "x0", "x-1", "+10%", "25Gb/s", "25G", "double", "xx2", "200%",
                   "x2.0.1", "10us", "25GB", "100gbe", "times2")),
    "delay": Noun(("x2", "10us", "x0.5"), ("2x", "2", "x0", "x-1", "-10%", "10", "25Gbps", "half", "10usec", "1ms")),
    "factor": Noun(("x1.5", "x2"), ("1.5", "2x", "x0", "fast", "x-2", "150%", "x", "1.5x")),
    "effect": Noun(
        ("none", "launch_latency", "compute_slowdown=0.1", "hook_time=50us", "copy_in"),
        ("launch-latency", "latency", "compute_slowdown", "compute_slowdown=10%", "hook_time=50", "copy_in=1",
         "launch_latency=fast", "all", "straggler", "hook_time=", "None", "copy_in=10us", "compute_slowdown=-1",
         "launch_latency:5us", "copyin", "negotiation=1ms", "compute_slowdown=2"),
    ),
    "cost-model": Noun(
        ("ring", "nccl", "hockney", "piecewise", "tabulated"),
        ("rings", "tree", "NCCL", "alpha-beta", "logp", "linear", "double_binary_tree", "best", "hierarchical"),
    ),
    "compression": Noun(
        ("fp16", "bf16", "powersgd:4", "none"),
        ("float16", "FP16", "half", "powersgd", "powersgd:0", "topk", "int8", "fp8", "powersgd:four", "bfloat16",
         "power_sgd:4", "PowerSGD:4", "fp_16", "powersgd:4.5", "onebit", "powersgd:-1", "gzip"),
    ),
    "optimizer": Noun(("sgd", "adam", "adamw", "momentum"), ("Adam", "lamb", "adagrad", "AdamW8bit", "sgdm", "lion",
        "muon")),
    "count": Noun(("32", "4", "8"), ("0", "-1", "2.5", "x4", "many", "1000000000", "4k", "1e3", "8 ", "3")),
    "degree": Noun(("1", "2", "4"), ("0", "-2", "3", "two", "1.5", "7", "64", "1024")),
    "amount": Noun(("1.28M", "300B", "15T", "115e6"), ("0", "-1", "1,281,167", "300 billion", "1.28m", "300Bn",
        "lots", "1e400",
                   "300b", "5 epochs", "1_000_000", "10K", "1/2")),
    "price": Noun(("2.5", "1.3"), ("$2.5", "2,5", "-1", "free", "0", "2.5USD", "2.50/h", "1e999", "2.5€")),
    "money": Noun(("5M", "10000"), ("$5M", "-1", "5 million", "0", "cheap", "1,000", "5m", "1e6")),
    "part": Noun(("0.9", "90%"), ("90", "1.5", "-0.1", "0", "most", "150%", "0,9", "90 %", "1/2", ".9")),
    "tolerance": Noun(("2%", "0.05"), ("2", "-1%", "two", "5 %", "200%", "0.05%", "0,05", "2pct")),
    "steps": Noun(("5..7", "6"), ("7..5", "5-7", "a", "5..", "100..200", "-1", "5:7", "5,6,7")),
    "style": Noun(("json", "csv", "yaml", "table", "code"), ("JSON", "xml", "html", "text", "yml", "markdown",
        "jsonl", "md")),
    "output": Noun(
        ("new.json", "new.csv", "new.yaml", "new.txt", "page.html", "picture.svg", "-"),
        ("missing/new.json", "traces", "new.pdf", "new.xlsx", "ddp.py", "horovod.env", "/new/x.json", "new",
            "new.json.gz"),
    ),
    "gpu": Noun(GPUS, OTHER_GPUS),
    "format": Noun(("nccl-tests", "kineto", "csv-table", "osfmodel", "csv-layers"),
                   ("nccl", "nccl_tests", "torch-profiler", "chrome-trace", "csv", "nsys", "rccl-tests", "json",
                       "Kineto")),
    "kind": Noun(("workload", "cluster", "measurements", "plan"), ("model", "network", "Cluster", "workloads",
        "trace")),
    "collective": Noun(("all_reduce", "all_gather", "reduce_scatter"),
                       ("allreduce", "all-reduce", "AllReduce", "broadcast", "alltoall", "all_to_all",
                           "reduce-scatter")),
    "anchor": Noun(("16=0.61s", "16=210samples/s", "8=610ms", "16=0.61s,accumulate=2"),
                   ("0.61s", "16:0.61s", "16=0.61", "0=1s", "16=5762tok/s", "16=5762tok/s/gpu", "16=fast", "sixteen=1s",
                    "16=210img/s", "16=210samples/sec", "16=", "runs.json", "8=7800tokens/s", "8=610 ms",
                        "8=40TFLOPS")),
    "lead": Noun(("1", "1..4"), ("0", "-1", "fast", "4..1", "2x", "x2", "1-4")),
    "keeper": Noun(("local", "ddp", "ddp-view", "runtime"), ("horovod", "view", "DDP", "fsdp", "ddp_view")),
    "engine": Noun(("auto", "osf"), ("simulator", "ours", "OSF", "default", "astra-sim")),
    "goal": Noun(("samples_per_s", "step_time_s", "samples_per_s,cost"),
                 ("speed", "samples/s", "cost", "step_time", "samples_per_second", "time", "price", "memory")),
    "where": Noun(('plan == "ddp"', "workers <= 8"), ("plan = ddp", "worker <= 8", "plan == ddp", "workers < many",
        "workers <=")),
    "snippet": Noun(("torchrun", "slurm", "nccl-tuner"), ("sbatch", "mpirun", "SLURM", "k8s", "nccl", "torch-run")),
    "table": Noun(("sweep.csv", "sweep.jsonl"), ("sweep.txt", "sweep.json", "missing/sweep.csv", "sweep.sqlite",
        "sweep")),
    "grid": Noun(("grid.yaml",), FILES),
    "prediction": Noun(("predicted.json",), FILES),
    "trace": Noun(("rank0.json", "traces", "traces.tar.gz", "rank0.json.gz"), FILES),
    "log": Noun(("nccl-tests.log", "rank0.json", "timeline.json", "all.log", "n8.log", "traces"), FILES),
    "network": Noun(("azure-a100-hdr", "nccl-tests.log", "emulated-4x1gbit", "this-month.json", "all.log", "h100-node"),
                    ("azure-a100", "v100-10gbe", "ring:50us,10Gbps", "nccl:h100x8,400Gbps", *FILES)),
    "source": Noun(("bcaffe", "ddl-benchmarks", "runs.json", "papers", "pollux-ncf"),
                   ("bcafe", "ddl_benchmarks", "papers.json", "mlperf", "BCAFFE", "resnet50-v100", *FILES)),
    "data": Noun(("before.csv", "after.csv", "before.csv", "runs.json", "this-month.json"), FILES),
    "ddp-log": Noun(("ddp.json",), FILES),
    "entries": Noun(("workloads", "clusters", "gpus", "plans", "effects", "architectures", "formats", "targets",
        "fabrics"),
                    ("workload", "gpu", "model", "models", "networks", "Clusters", "sources", "frameworks",
                        "optimizers",
                     "cluster", "v100-10gbe", "plan", "configuration", "strategies", "h100")),
    "name": Noun(("h100", "ddp", "v100-10gbe", "resnet50-v100", "fsdp2", "gpt2", "ib", "nccl-tests"),
                 ("H100", "zero2", "gpt-2", "infiniband", "resnet50", *OTHER_GPUS)),
    "text": Noun(("mine", "my model"), ("", "a/b")),
    "scaling": Noun(("weak", "strong"), ("Weak", "linear")),
    "layout": Noun(("any", "tp=1,cp=1,pp=1,ac=none"), ("tp<8", "some", "dp=2")),
    "jobs": Noun(("1",), ("0", "two", "-1")),
    "fit": Noun(("piecewise", "hockney", "ring"), ("linear", "nccl", "tabulated", "lstsq", "protocols", "Ring")),
}  # fmt: skip
"""Nouns of the grammar."""

OPTIONS: Mapping[str, str] = {
    "--cluster": "cluster", "--workers": "workers", "--plan": "plan", "--for": "target", "--memory": "size",
    "--max-bucket": "size", "--max-buckets": "count", "--bandwidth": "change", "--latency": "delay",
        "--against": "cluster",
    "--compute": "factor", "--effect": "effect", "--cost-model": "cost-model", "--compression": "compression",
    "--accumulate": "count", "--channels": "degree", "--samples": "amount", "--tokens": "amount", "--price": "price",
    "--price-per-gpu-hour": "price", "--batch-size": "count", "--global-batch": "count", "--optimizer": "optimizer",
    "--communicator": "size", "--density": "part", "--engine": "engine", "--format": "style", "--output": "output",
    "--device": "degree", "--expected": "workload", "--steps": "steps",
    "--model": "workload", "--ddp-logging": "ddp-log", "--target-scaling": "part",
    "--target-time": "time", "--target-tokens-per-s": "amount", "--budget": "money", "--tp": "degree", "--cp": "degree",
    "--pp": "degree", "--vpp": "degree", "--ep": "degree", "--anchor": "anchor", "--host-lead": "lead",
    "--lines": "snippet",
        "--fit": "fit",
    "--as": "format", "--kind": "kind", "--gpu": "gpu", "--gpus-per-node": "degree", "--collective": "collective",
    "--name": "text", "--tolerance": "tolerance", "--baseline": "data", "--candidate": "data", "--keeper": "keeper",
    "--also": "workload", "--best": "goal", "--influence": "goal", "--where": "where", "--into": "table",
        "--jobs": "jobs",
    "--trace": "trace", "--prediction": "prediction", "--scaling": "scaling", "--anchors": "log", "--layout": "layout",
}  # fmt: skip
"""Kind of thing that the value of an option names."""

ARGUMENTS: Mapping[str, Sequence[str]] = {
    "predict": ("workload",), "tune": ("workload",), "scale": ("workload",), "memory": ("workload",),
    "report": ("workload",), "sweep": ("grid",), "compare": ("data", "data"), "explain": ("trace",),
    "check": ("source",), "doctor": ("network",), "import": ("log",), "list": ("entries", "name"),
}  # fmt: skip
"""Arguments of the commands that need no PyTorch."""
REQUIRED = ("--cluster", "--workers")
"""Options that predict, tune, scale and report cannot do without."""
LEFT_OUT = {"--live", "--workload", "--scale", "--iterations", "--repeat", "--backend", "--timeout", "--dask", "--plot"}
"""Options that train, reach other machines, or need matplotlib."""


class Draw(NamedTuple):
    """A command line, the near misses in it, by the noun or the kind of mistake, and the words that were meant."""

    words: tuple[str, ...]
    misses: tuple[str, ...]
    meant: frozenset[str] = frozenset()


@dataclass
class Line:
    """A command line as it is being written: arguments and options with their values, "" for a flag's."""

    command: str
    parts: list[tuple[str, str]]
    misses: list[str] = field(default_factory=list)
    called: str = ""
    meant: frozenset[str] = frozenset()

    def draw(self) -> Draw:
        """The words of the line."""
        words = [word for name, value in self.parts for word in (name.lstrip("<"), value) if word or name == "<"]
        return Draw((self.called or self.command, *(word for word in words if word)), tuple(self.misses), self.meant)


def options_of(command: str) -> Mapping[str, click.Option]:
    """The options of a command by their long names."""
    entry = click_command(command)
    named = {max(one.opts, key=len): one for one in entry.params if isinstance(one, click.Option)}
    return {name: one for name, one in named.items() if name not in (*LEFT_OUT, "--help")}


def click_command(command: str) -> click.Command:
    """The command of that name."""
    found = main.get_command(click.Context(main), command)
    assert found is not None
    return found


def valid(random: Random, noun: str) -> str:
    """A value that is meant to be taken."""
    return random.choice(NOUNS[noun].valid)


def drawn(random: Random) -> Draw:
    """A command line: half of them as the help says, the others with one near miss or two."""
    command = random.choices(list(ARGUMENTS), [WEIGHTS.get(name, 1) for name in ARGUMENTS])[0]
    known = options_of(command)
    arguments = ARGUMENTS[command][: random.choice((1, 2)) if command == "list" else None]
    parts = [("<", valid(random, noun)) for noun in arguments]
    if command == "compare":
        parts = [("<", name) for name in random.sample(random.choice(KINDS), 2)]
    needed = () if command == "explain" else REQUIRED
    asked = [name for name in needed if name in known and (command != "memory" or random.random() < 0.5)]
    more = random.sample(
        sorted(set(known) - set(REQUIRED)), min(len(known) - len(asked), random.choice((0, 1, 1, 2, 2)))
    )
    parts += [(name, "" if known[name].is_flag else valid(random, OPTIONS[name])) for name in (*asked, *more)]
    line = Line(command, parts, meant=frozenset({command, *(word for part in parts for word in part)}))
    for _ in range(random.choice((0, 0, 1, 1, 1, 2))):
        random.choices(list(MISTAKES), list(MISTAKES.values()))[0](line, random)
    return line.draw()


WEIGHTS = {"predict": 3, "tune": 3, "scale": 3}


def _near(line: Line, random: Random) -> None:
    """A near miss in the place of a value."""
    nouns = [*ARGUMENTS[line.command]]
    places = [i for i, (name, value) in enumerate(line.parts) if value and (name == "<" or name in OPTIONS)]
    if not places:
        return
    place = random.choice(places)
    name = line.parts[place][0]
    noun = nouns[min(place, len(nouns) - 1)] if name == "<" else OPTIONS[name]
    if NOUNS[noun].near:
        line.parts[place] = (name, random.choice(NOUNS[noun].near))
        line.misses.append(noun)


def _misspelt(line: Line, random: Random) -> None:
    """A letter of a name swapped, left out or doubled."""
    places = [(i, j) for i, part in enumerate(line.parts) for j in (0, 1) if len(part[j]) > 3]
    if not places:
        return
    place, which = random.choice(places)
    part = list(line.parts[place])
    part[which] = typo(random, part[which])
    line.parts[place] = (part[0], part[1])
    line.misses.append("spelling")


def _command(line: Line, random: Random) -> None:
    """The command's own name misspelt, or another tool's."""
    line.called = random.choice((typo(random, line.command), "train", "plan", "simulate", "optimize", "profiler"))
    line.misses.append("command")


def typo(random: Random, word: str) -> str:
    """A word with a letter swapped, left out or doubled."""
    at = random.randrange(2 if word.startswith("--") else 0, len(word) - 1)
    before, letter, after = word[:at], word[at], word[at + 1 :]
    return random.choice((before + after[:1] + letter + after[1:], before + after, before + letter + letter + after))


def _foreign(line: Line, random: Random) -> None:
    """An option of another command, or of another tool."""
    others = sorted({name for command in ARGUMENTS for name in options_of(command)} - set(options_of(line.command)))
    name = random.choice((*others, *others, "--gpus", "--nodes", "--model-name", "--tensor-parallel-size", "--seed"))
    value = valid(random, OPTIONS[name]) if name in OPTIONS else ""
    line.parts.append((name, value or ("" if name in FLAGS else "8")))
    line.misses.append("option")


FLAGS = ("--buckets", "--forward-overlap", "--split", "--json", "--rows", "--evidence", "--fail", "--no-release",
         "--sparse", "--mirror", "--help", "--verbose")  # fmt: skip


def _missing(line: Line, random: Random) -> None:
    """An argument, an option or a value left out."""
    if not line.parts:
        return
    place = random.randrange(len(line.parts))
    name, value = line.parts[place]
    if random.random() < 0.7 or name == "<" or not value:
        del line.parts[place]
    else:
        line.parts[place] = (name, "")
    line.misses.append("missing")


def _extra(line: Line, random: Random) -> None:
    """One more argument, or an option of the same command at random."""
    known = options_of(line.command)
    if random.random() < 0.3 or not known:
        line.parts.append(("<", valid(random, ARGUMENTS[line.command][0])))
    else:
        name = random.choice(sorted(known))
        line.parts.append((name, "" if known[name].is_flag else valid(random, OPTIONS[name])))
    line.misses.append("extra")


MISTAKES: Mapping[Callable[[Line, Random], None], float] = {
    _near: 6, _misspelt: 2, _command: 0.5, _foreign: 1, _missing: 1, _extra: 1,
}  # fmt: skip
"""Kinds of mistakes, and how often each is made."""


# The judge

STEPS = 3
"""Refusals in a row that a user puts up with."""
LARGEST = 4096
"""Largest bound of a range that is tried."""
TRIED = 6
"""Proposals of one line that are tried."""
VERDICTS = ("answered", "remedied", "no remedy", "remedy fails", "silent", "several lines", "traceback")
GOOD = ("answered", "remedied")


class Answer(NamedTuple):
    """The end of a command: its exit code, and the line of its error, or "" ."""

    verdict: str
    line: str = ""


class Judged(NamedTuple):
    """The verdict on a command line, what it said, and the commands that the line proposes, with their answers."""

    words: tuple[str, ...]
    verdict: str
    line: str = ""
    tried: tuple[tuple[tuple[str, ...], str], ...] = ()


class Bench:
    """Runs commands, each in a new folder with the files of tests/stand_ins.py."""

    def __init__(self, folder: Path) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        stand_ins.place(self.files)
        self.kept: dict[tuple[str, ...], Answer] = {}

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Be in a new folder with the files."""
        before = Path.cwd()
        with tempfile.TemporaryDirectory() as made:
            place = Path(made) / "here"
            shutil.copytree(self.files, place)
            os.chdir(place)
            try:
                yield
            finally:
                os.chdir(before)

    def answer(self, words: Sequence[str], *earlier: Sequence[str]) -> Answer:
        """The answer to a command, in the folder in which ``earlier`` ones were given."""
        key = (*words, *(word for one in earlier for word in ("", *one)))
        if key not in self.kept:
            with self.folder():
                for one in earlier:
                    invoke(one)
                self.kept[key] = answer_of([made_by_earlier(word) if earlier else word for word in words])
        return self.kept[key]


def made_by_earlier(word: str) -> str:
    """A file of which a message names the folder and the kind, as ``job/workload.json``, by its full name."""
    return next((str(path) for path in Path().glob(word.replace("/", "/*")) if "/" in word), word)


def answer_of(words: Sequence[str]) -> Answer:
    """The answer of ``osf`` in this folder."""
    result = invoke(words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return Answer("traceback", "".join(traceback.format_exception(result.exception)[-3:]))
    told = result.stderr.splitlines()
    errors = [line for line in told if not re.match(r"osf: (warning|wrote|defaults|note|\d+ of \d+ ranks)", line)]
    written = any(line.startswith("osf: wrote") for line in told)
    if result.exit_code == 0 or (result.exit_code == 1 and (result.stdout.strip() or written)):
        return Answer("answered" if result.stdout.strip() or told else "silent")
    if result.exit_code not in (1, 2) or not errors:
        return Answer("silent", f"exit code {result.exit_code}")
    return Answer("refused" if len(errors) == 1 else "several lines", "\n".join(errors).removeprefix("osf: "))


class Proposal(NamedTuple):
    """A command line that a message proposes, after ``earlier`` ones; ``put``: what was written in it, or ""."""

    words: tuple[str, ...]
    put: str = ""
    earlier: tuple[tuple[str, ...], ...] = ()


Words = tuple[str, ...]
Earlier = tuple[Words, ...]
OPTION = r"(?<![\w-])(--?[a-z][a-z-]*)"
QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"")
VALUE = r"(?:write|such as|for example|as in)(?: as in| for example| such as| counts such as)? "
SHORT = {"-o": "--output", "-f": "--format", "--json": "--format"}


def quoted(line: str) -> list[str]:
    """The words that a line quotes."""
    return [one or two for one, two in QUOTED.findall(line)]


def culprits(words: Words, line: str) -> list[tuple[int, str]]:
    """The places of words that a line finds fault with, and the parts of them: quoted, after their option, or named."""
    refused = re.match(r"Invalid value for (?:'-\w' / )?'(--[a-z-]+)': ", line)
    if refused and refused[1] in words[:-1]:  # only the value of that option is at fault
        place = words.index(refused[1]) + 1
        return [(place, words[place])]
    found = [
        (place, part)
        for part in reversed(quoted(line))
        for place, word in enumerate(words)
        if (
            part == word
            if word.startswith("--") or part.startswith("--")
            else re.search(rf"(?<![a-zA-Z0-9]){re.escape(part.strip())}(?![a-zA-Z0-9])", word)
        )
    ]
    for name in (SHORT.get(name, name) for name in re.findall(OPTION, line)):
        found += [(place, words[place]) for place in range(1, len(words)) if words[place - 1] == name]
    found += [
        (place, word)
        for place, word in enumerate(words)
        if place and not word.startswith("-") and re.search(rf"(?<![^\s(]){re.escape(word)}(?=[\s:),])", line)
    ]
    return [(place, part) for place, part in dict.fromkeys(found) if part]


def names_in(text: str) -> list[str]:
    """The names of a list such as ``a, b or c`` or ``'a', 'b'``."""
    parts = re.split(r", or |, | or | and ", text.replace("RANK", "4").strip(" .?)"))
    return [part.strip(" '\"") for part in parts if re.fullmatch(r"['\"]?[\w.+:/=-]+(?:,[\w.=]+)*['\"]?", part.strip())]


def put(words: Words, line: str, value: str) -> Iterator[Proposal]:
    """``value`` in the place of what the line finds fault with."""
    found = [(place, part) for place, part in culprits(words, line) if part.startswith("--") == value.startswith("--")]
    for place, part in found[:2]:
        word = words[place]
        whole = value if (":" in value and ":" in word) or part not in word else word.replace(part, value)
        yield Proposal((*words[:place], whole, *words[place + 1 :]), value)


def without(words: Words, name: str) -> Words:
    """The words without an option and its values, or without an argument."""
    if name not in words:
        return words
    place = len(words) - 1 - words[::-1].index(name)
    if not name.startswith("-") and words[place - 1] in OPTIONS:
        return without(words, words[place - 1])
    value = (
        name.startswith("-") and place + 1 < len(words) and not words[place + 1].startswith("--") and name not in FLAGS
    )
    left = (*words[:place], *words[place + 1 + value :])
    return without(left, name) if name.startswith("-") else left


def _did_you_mean(words: Words, line: str) -> Iterator[Proposal]:
    for found in re.findall(r"[Dd]id you mean (?:one of: )?(.+?)\?", line):
        for name in names_in(found):
            yield from list(put(words, line[: line.lower().index("did you mean")], name))[:1]


def _listed(words: Words, line: str) -> Iterator[Proposal]:
    for found in re.findall(
        r"(?:known are|is not one of|can are|were measured: |expected one of|write|has) (.+)$", line
    ):
        for name in names_in(found):
            yield from put(words, line, name)


def _example(words: Words, line: str) -> Iterator[Proposal]:
    for found in re.finditer(rf"{VALUE}(?!-)(\S+)((?:(?:,| or) \S+)*)", line):
        values = [value for value in names_in(found[1] + found[2]) if not re.search(r"\[|[A-Z]{4,}", value)]
        for value in values:
            yield from put(words, line, value)


def _other_value(words: Words, line: str) -> Iterator[Proposal]:
    """``--x VALUE`` that is to be given, or is an example of a missing one."""
    lead = r"(?:give|add|needs|write|example|with|such as|tune|and|or|set)"
    for found in re.finditer(rf"{lead} {OPTION}(?:[ =]([^\s,;]+(?:,[^\s]+)?))?", line):
        name, said = found[1], (found[2] or "").rstrip(".,:;")
        example = re.search(r"such as ([^\s;]+?)[,.;]?(?: or|$|\s)", line[found.start() :])
        if re.fullmatch(r"[a-z:]*[A-Z]+[A-Z.[\]|]*", said) or not re.search(r"\w", said) or said in NO_VALUES:
            said = example[1] if example else ""
        value = "" if name in FLAGS else said or (valid_first(name) if name in OPTIONS else "")
        if value or name in FLAGS:
            left = without(words, SHORT[name] if name in ("-o", "-f") else name)
            yield Proposal((*without(left, name), name, *filter(None, [value])), name)
    for one, two in re.findall(rf"give {OPTION}(?: [A-Z]\S*|,)? and {OPTION}", line):
        more = [word for name in (one, two) if name not in words for word in (name, valid_first(name))]
        yield Proposal((*words, *more), one)


NO_VALUES = ("or", "and", "both", "beside", "takes", "is", "instead")


def valid_first(option: str) -> str:
    """The first value that an option is meant to take."""
    return NOUNS[OPTIONS[option]].valid[0]


KINDS = (
    ("before.csv", "after.csv", "before-2.csv", "after-2.csv"), ("runs.json", "run.json", "r.json"),
    ("this-month.json", "last-month.json", "all-hosts.json"), ("traces", "traces.tar.gz"), ("rank0.json", "rank1.json"),
    ("nccl-tests.log", "all.log", "n8.log"), ("model.json", "my-model.json"), ("cluster.json", "my-cluster.json"),
)  # fmt: skip
"""Files of one kind."""
DESCRIBED: Mapping[str, str] = {
    "nccl-tests log": "nccl-tests.log", "osf bench": "this-month.json", "osf run": "runs.json",
    "osf profile": "model.json", "profiler trace": "rank0.json", "torch.profiler": "rank0.json",
    "file of measurements": "this-month.json", "grid": "grid.yaml",
}  # fmt: skip
"""Files by what messages call them."""


def _another(words: Words, line: str) -> Iterator[Proposal]:
    """Another file of the kind of one that is given, or one of the kind that is described."""
    fault = culprits(words, line)
    if "compare files of one kind" in line or "give another file" in line:
        for place, _ in reversed(fault):
            for name in next((kind for kind in KINDS if kind[0] in words or kind[1] in words), ()):
                if name not in words:
                    yield Proposal((*words[:place], name, *words[place + 1 :]), name)
    for said, name in DESCRIBED.items():
        if re.search(rf"(?:give|with|not a|take|need)[^;]* {said}", line):
            yield from put(words, line, name)
    for noun, name in (("workload", "model.json"), ("cluster", "cluster.json"), ("measurements", "runs.json")):
        if f"{noun} is needed" in line or f"{noun} are needed" in line:
            yield from put(words, line, name)
    for value, ending in re.findall(r"-o (\S+): .*?(\.(?:html|json))", line):
        yield from put(words, line, f"{Path(value).stem}{ending}")
    for value, folder in re.findall(r"-o ([^:]+): (that is a folder|there is no folder)", line):
        name = f"{value}/new.json" if "that" in folder else Path(value).name
        yield Proposal(tuple(name if word == value else word for word in words), name)
    if re.search(r"check the path|give a file in it", line):
        for place, part in culprits(words, line):
            noun = OPTIONS.get(words[place - 1], ARGUMENTS.get(words[0], ("data",))[0])
            yield Proposal((*words[:place], NOUNS[noun].valid[0], *words[place + 1 :]), part)


def _leave_out(words: Words, line: str) -> Iterator[Proposal]:
    some = rf"{OPTION}(?:(?:,| and) {OPTION})*"
    for found in re.findall(
        rf"[Ll]eave out|[Ll]eave (?:it|that|them|the option|one|{some}|\S+) out|give one of them|neither", line
    ):
        given = [name for name in found if name] or [SHORT.get(name, name) for name in re.findall(OPTION, line)]
        given += [part for place, part in culprits(words, line) if part == words[place] and not any(found)]
        for name in given:
            yield Proposal(without(words, name), "")
        shorter = words
        for name in given:
            shorter = without(shorter, name)
        yield Proposal(shorter, "")
        for place, part in culprits(words, line):
            shortened = re.sub(rf",?{re.escape(part)}", "", words[place])
            if shortened and shortened != words[place]:
                yield Proposal((*words[:place], shortened, *words[place + 1 :]), "")


def _range(words: Words, line: str) -> Iterator[Proposal]:
    for value in re.findall(r": (\d+) is$", line):
        yield from put(words, line, value)
    for low, high in re.findall(r"(?:range|from) (\d+)?(?:<=|<| to )?x?(?:[<>]=)?(\d+)?", line):
        for bound in (low, high):
            if bound and int(bound) <= LARGEST:
                yield from put(words, line, bound)


def _list(words: Words, line: str) -> Iterator[Proposal]:
    for kind in re.findall(r"'osf list ([a-z-]+)'", line):
        told = invoke(["list", kind, "--format", "csv"]).stdout.splitlines()
        for name in [row.split(",")[1] if row.startswith(kind) else row.split(",")[0] for row in told[1:]]:
            yield from put(words, line.replace(f"'osf list {kind}'", ""), name)


def _help(words: Words, line: str) -> Iterator[Proposal]:
    for asked in re.findall(r"'osf ([a-z-]*) ?--help'", line):
        yield Proposal((*([asked] if asked else []), "--help"), "")


def _run(words: Words, line: str) -> Iterator[Proposal]:
    for command in re.findall(r"For example: osf (.+)$", line):
        yield Proposal(tuple(shlex.split(command)))
    for command, what in re.findall(r"run `osf (.+?)`(?:, and give (?:the )?(\w+))?", line):
        earlier = tuple(shlex.split(command))
        made = earlier[earlier.index("-o") + 1] if "-o" in earlier else ""
        made = f"{made}{what}.json" if made.endswith("/") else made
        for place, word in enumerate(words):
            if word == earlier[1]:
                yield Proposal((*words[:place], made, *words[place + 1 :]), made, (earlier,))


RULES = (_did_you_mean, _run, _other_value, _leave_out, _example, _range, _listed, _list, _another, _help)
"""Forms of proposals, in the words that osfmodel's messages use."""


def proposals(words: Words, line: str) -> list[Proposal]:
    """The commands that a line proposes, those first that it names most clearly."""
    found = [one for rule in RULES for one in rule(words, line) if one.words != words]
    return list({one.words: one for one in found}.values())


def shape(line: str) -> str:
    """A complaint without the values in it."""
    return re.sub(r"'[^']*'|\d+", "", line)


def judged(
    words: Words, bench: Bench, meant: frozenset[str] = frozenset(), steps: int = STEPS, earlier: Earlier = ()
) -> Judged:
    """The verdict on a command line.

    What "did you mean" names must mend the complaint, each name; some proposal must lead to an answer. Those that
    write a word that was ``meant`` are tried first.
    """
    answer = bench.answer(words, *earlier)
    if answer.verdict != "refused":
        return Judged(words, answer.verdict, answer.line)
    found = sorted(proposals(words, answer.line), key=lambda one: not meant & {one.put} - {""})
    if not found or not steps:
        return Judged(words, "no remedy" if steps else "remedy fails", answer.line)
    tried = []
    named = {one.words for one in _did_you_mean(words, answer.line)}
    works = False
    for one in found[: max(TRIED, len(named))]:
        before = (*earlier, *one.earlier)
        after = bench.answer(one.words, *before)
        same = after.verdict == "refused" and shape(after.line) == shape(answer.line) and (
            set(quoted(after.line)) == set(quoted(answer.line)) or (one.put and one.put in after.line)
        )  # fmt: skip
        if not works and after.verdict == "refused" and not same:
            works = judged(one.words, bench, meant, steps - 1, before).verdict in GOOD
        works = works or after.verdict == "answered"
        tried.append((one.words, f"{after.verdict} {after.line}"))
        if after.verdict not in ("answered", "refused") or (same and one.words in named):
            return Judged(words, "remedy fails", answer.line, tuple(tried))
    return Judged(words, "remedied" if works else "remedy fails", answer.line, tuple(tried))


# Both sides

ON_RING = "resnet50-memory --cluster ring:50us,10Gbps --workers 8"
PREDICT, SCALE, TUNE = f"predict {ON_RING} --plan ddp", f"scale {ON_RING} --plan ddp", f"tune {ON_RING}"
SIDES: Mapping[str, Sequence[str]] = {
    "gpu": (
        "predict 'gpt2:{},batch2' --cluster ring:50us,10Gbps --workers 8 --plan ddp",
        "predict resnet50-v100 --cluster 'nccl:{}x8,100Gbps' --workers 8 --plan ddp",
        "doctor this-month.json --against 'nccl:{}x8,100Gbps'",
        "list gpus '{}'",
    ),
    "plan": tuple(f"{command} {ON_RING} --plan '{{}}'" for command in ("predict", "scale", "report", "memory")),
    "target": (f"{TUNE} --for '{{}}'", f"{SCALE} --for '{{}}'", "list targets '{}'"),
    "size": (
        f"predict {ON_RING} --plan 'cap:{{}}'", f"{TUNE} --max-bucket '{{}}'", f"{SCALE} --memory '{{}}'",
        "memory resnet50-memory --memory '{}'", "memory resnet50-memory --communicator '{}'",
    ),
    "time": (
        "predict resnet50-memory --cluster 'ring:{},10Gbps' --workers 8 --plan ddp", f"{PREDICT} --latency '{{}}'",
        f"{SCALE} --target-time '{{}}'", f"{SCALE} --anchor '8={{}}'", f"{PREDICT} --effect 'hook_time={{}}'",
    ),
    "rate": (
        "predict resnet50-memory --cluster 'ring:50us,{}' --workers 8 --plan ddp",
        "predict resnet50-memory --cluster 'nccl:v100x8,{}' --workers 8 --plan ddp",
        f"{PREDICT} --bandwidth '{{}}'",
    ),
    "compression": tuple(f"{command} --compression '{{}}'" for command in (PREDICT, TUNE, SCALE)),
    "effect": tuple(f"{command} --effect '{{}}'" for command in (PREDICT, TUNE, SCALE, f"memory {ON_RING} --plan ddp")),
    "amount": (
        f"{SCALE} --samples '{{}}'", f"{PREDICT} --samples '{{}}'",
        "scale gpt2:h100,batch8 --cluster ring:50us,10Gbps --workers 8 --plan ddp --tokens '{}'",
    ),
    "optimizer": (
        f"{SCALE} --optimizer '{{}}'", "memory resnet50-memory --optimizer '{}'",
        f"{TUNE} --memory 16GiB --batch-size 8 --optimizer '{{}}'",
    ),
    "tolerance": ("compare before.csv after.csv --tolerance '{}'", "check runs.json --tolerance '{}'"),
    "architecture": (
        "predict '{}:h100,batch2' --cluster ring:50us,10Gbps --workers 8 --plan ddp", "list architectures '{}'",
    ),
    "workers": tuple(
        f"{command} resnet50-memory --cluster ring:50us,10Gbps --workers '{{}}'{more}"
        for command, more in (("predict", " --plan ddp"), ("scale", " --plan ddp"), ("tune", ""))
    ),
}  # fmt: skip
"""Commands that all take the same noun, in the place of the braces."""


UNKNOWN = re.compile(r"unknown|is not|no unit|[Dd]id you mean|there is no|no architecture|: write")
"""How a line begins that does not know a value, where another does."""


def one_sided(noun: str, bench: Bench, every: int = 1) -> Iterator[str]:
    """The values of a noun, one of so many, that one side takes and another does not know, with the complaint."""
    for value in (*NOUNS[noun].valid, *NOUNS[noun].near)[::every]:
        lines = [tuple(shlex.split(side.format(value))) for side in SIDES[noun] if "'" not in value]
        answers = {words: bench.answer(words) for words in lines}
        if any(answer.verdict == "answered" for answer in answers.values()):
            for words, answer in answers.items():
                if answer.verdict != "answered" and UNKNOWN.search(answer.line):
                    yield f"{noun} {value!r}: osf {shlex.join(words)}: {answer.line}"
