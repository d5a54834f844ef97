"""Published runs as every predictor can be asked for them: sizes of the model, GPU, layout, and what was measured.

The runs are those of profiles/in_words.py and profiles/published/, and of OSFMODEL_DATA/sharded, which has memory:
SimuMax's peaks of allocated memory and nanotron's runs on several nodes, of which every nth is taken (``--every``).
Left out are runs of which a part of the blocks was recomputed. To add a source: a function
here that yields PeerRow, and a line in SOURCES.
"""

from __future__ import annotations

import atexit
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import NamedTuple

from osfmodel.cost.clusters import load_cluster
from osfmodel.counting.config import Config
from osfmodel.counting.groups import Parallelism
from osfmodel.counting.modules import Model
from osfmodel.counting.training import TrainingSetup
from osfmodel.counting.words import configuration, model_of, parse_words
from osfmodel.entities.gpus import GPUS, Gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "profiles"))
import make_efficiency as learning
from in_words import runs_in_words

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("OSFMODEL_DATA", ".")) / "sharded"
GIB = 2**30


class Sizes(NamedTuple):
    """A decoder's sizes; ``inner``: of a feed-forward part or an expert; ``experts``: 0 for a dense model."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_width: int
    vocabulary: int
    gated: bool
    experts: int
    chosen: int

    @classmethod
    def of(cls, config: Config) -> Sizes:
        """The sizes that a configuration states, under the names of any of its types."""
        width, heads = config.count("hidden_size", "d_model", "n_embd"), config.count("num_attention_heads", "n_heads")
        experts = config.count("num_experts", "num_local_experts", default=0, least=0)
        inner = "moe_intermediate_size" if experts and config.value("moe_intermediate_size") else "intermediate_size"
        return cls(
            config.count("num_hidden_layers", "n_layers"),
            width,
            config.count(inner, "ffn_dim", default=4 * width),
            heads,
            config.count("num_key_value_heads", default=heads),
            config.count("head_dim", default=width // heads),
            config.count("vocab_size"),
            config.word("model_type") not in ("mpt", "gpt2"),
            experts,
            config.count("num_experts_per_tok", default=0, least=0),
        )


class PeerRow(NamedTuple):
    """A run: ``osf scale`` is asked for it by ``stated``, all others by what the properties tell.

    seconds:  of a step
    memory:   peak in bytes, None where none was published
    reserved: whether that is what PyTorch's allocator reserved; allocated else
    """

    stated: learning.Stated
    memory: float | None = None
    reserved: bool = False

    @property
    def source(self) -> str:
        """The name of its source."""
        return self.stated.source

    @property
    def seconds(self) -> float:
        """Seconds of a step, as measured."""
        return self.stated.seconds

    @property
    def setting(self) -> TrainingSetup:
        """GPU, type, micro-batch, checkpointing and stack."""
        return parse_words(self.stated.words).setting

    @property
    def gpu(self) -> Gpu:
        """The GPU's data sheet."""
        return GPUS[self.setting.gpu]

    @property
    def fp8(self) -> bool:
        """Whether products are in a narrow type."""
        return self.setting.dtype not in ("bfloat16", "float16", "float32")

    @property
    def peak(self) -> float:
        """Operations per second of the GPU's matrix products in the run's type."""
        return self.gpu.rate("float8" if self.fp8 else self.setting.dtype)

    @property
    def tokens(self) -> int:
        """Of a sample."""
        found = parse_words(self.stated.words).sequence
        assert found is not None
        return found

    @property
    def model(self) -> Model:
        """As osfmodel counts it."""
        return _model(self.stated.words.partition(",")[0], self.tokens)

    @property
    def sizes(self) -> Sizes:
        """The model's sizes."""
        return _sizes(parse_words(self.stated.words).model)

    @property
    def groups(self) -> Parallelism:
        """Tensor, pipeline, context and expert groups."""
        return self.stated.groups

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return self.stated.gpus // self.groups.gpus

    @property
    def zero(self) -> int:
        """The stage of ZeRO that the plan is: 0 for DDP, 3 for FSDP and HSDP."""
        name = self.stated.plan.split(":")[0]
        return 0 if name == "ddp" else 1 if name.startswith("zero-1") else 3

    @property
    def node(self) -> int:
        """GPUs of a node."""
        return load_cluster(self.stated.cluster).gpus_per_node

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.setting.batch * self.stated.micro_batches * self.replicas


@lru_cache(maxsize=64)
def _model(start: str, tokens: int) -> Model:
    return model_of(parse_words(f"{start},seq{tokens}"))


@lru_cache(maxsize=64)
def _sizes(name: str) -> Sizes:
    return Sizes.of(configuration(name))


def _stated() -> Iterator[PeerRow]:
    """NeMo, SimuMax, torchtitan and torchao; nanotron comes with its memory below."""
    peaks = _simumax()
    titan = iter(csv.DictReader((ROOT / "profiles/published/torchtitan.csv").read_text(encoding="utf-8").splitlines()))
    for one in learning.stated():
        if one.source == "torchtitan":
            memory = next(titan)["memory_gib"]
            yield PeerRow(one, float(memory) * GIB if memory else None, True)
        elif one.source == "simumax":
            yield PeerRow(one, peaks.get(round(one.seconds, 6)))
        elif one.source != "nanotron":
            yield PeerRow(one)


def _simumax() -> dict[float, float]:
    """Peaks of allocated memory by seconds of a step, which differ in all rows."""
    rows = _read("simumax/b200_llama70b_deepseekv2.csv")
    return {round(float(row["step_ms"]) / 1e3, 6): float(row["peak_allocated_gib"]) * GIB for row in rows}


def _read(name: str) -> list[dict[str, str]]:
    path = DATA / name
    if not path.exists():
        return []
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


NANOTRON = {"1B": "llama3.2-1b", "8B": "llama3-8b"}


def _nanotron() -> Iterator[PeerRow]:
    for row in _read("nanotron-ultrascale/benchmarks_1b_8b.csv"):
        count = {name: int(row[name]) for name in row if name.endswith(("_parallel", "_samples", "_accumulation", "s"))
                 and row[name].isdigit()}  # fmt: skip
        batch, turns = count["microbatch_samples"], count["grad_accumulation"]
        if row["model"] not in NANOTRON or count["data_parallel"] * batch * turns != count["global_batch_samples"]:
            continue
        groups = Parallelism(count["tensor_parallel"], count["pipeline_parallel"])
        words = f"{NANOTRON[row['model']]}:h100,seq4096,batch{batch},bf16,stack=nanotron"
        plan = "zero-1" if row["zero_stage"] == "1" else "ddp"
        seconds = count["global_batch_samples"] * 4096 / float(row["tokens_per_s"])
        cluster = "nccl:h100x8,400Gbps,efa"
        one = learning.Stated("nanotron", words, cluster, count["gpus"], plan, groups, turns, seconds)
        yield PeerRow(one, float(row["gpu_memory_gb"]) * 2**30, True)


def _in_words() -> Iterator[PeerRow]:
    """MosaicML, modalities, InternEvo and fms-fsdp, whose models are written as configurations beside."""
    for one in runs_in_words():
        if one.recomputed not in (0.0, 1.0):
            continue
        name = one.run.workload
        model = name if name.startswith("mpt") else _written(name, one.model)
        again = ",ac=full" if one.recomputed else ""
        setting = one.setting
        words = f"{model}:{setting.gpu},seq{one.model.tokens},batch{setting.batch},bf16{again},stack={setting.stack}"
        plan = "zero-1" if one.source == "internevo" else "hsdp" if one.run.plan.startswith("hsdp") else "fsdp2"
        turns, seconds = one.stated.micro_batches, one.run.iteration_time
        yield PeerRow(
            learning.Stated(
                one.source, words, one.run.cluster, one.run.workers, plan, Parallelism(), turns, seconds
            )
        )  # fmt: skip


FOLDER = Path(mkdtemp(prefix="osf-peers-"))
"""Folder of the configurations that are written."""
atexit.register(rmtree, FOLDER, ignore_errors=True)


def _written(name: str, model: Model) -> str:
    """The path of the configuration of a Llama-like model, from the shapes of its matrices."""
    path = FOLDER / f"{name.replace('.', '_')}.json"
    if not path.exists():
        shapes = {module.name: dict(module.parameters).get("weight") for module in model.modules}
        first = {key.rpartition(".")[2]: shape for key, shape in shapes.items() if ".0." in key and shape}
        vocabulary, width = next(shape for key, shape in shapes.items() if "embed" in key and shape)
        heads = 32 if width == 2560 else width // 128
        config = {
            "model_type": "llama",
            "hidden_size": width,
            "intermediate_size": first["up_proj"][0],
            "num_hidden_layers": len(model.blocks),
            "num_attention_heads": heads,
            "num_key_value_heads": first["k_proj"][0] * heads // width,
            "vocab_size": vocabulary,
            "max_position_embeddings": 262144,
            "attention_bias": name == "internlm-7b",
        }
        path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


SOURCES: Mapping[str, Callable[[], Iterator[PeerRow]]] = {
    "stated": _stated,
    "in words": _in_words,
    "nanotron": _nanotron,
}


def rows(every: int) -> list[PeerRow]:
    """All runs, of nanotron and MosaicML every nth."""
    found = [row for source in SOURCES.values() for row in source()]
    many = ("nanotron", "mosaicml-2023")
    thinned = [row for name in many for row in [one for one in found if one.source == name][::every]]
    return [row for row in found if row.source not in many] + thinned
