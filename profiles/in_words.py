"""Published runs whose model and GPU can be said in words: each with its counted model, its set-up and its plan.

Sources of large runs state all that words say. Their step times teach the efficiencies of the roofline
(make_efficiency.py), and predictions from words are held against them (benchmarks/from_words.py).
Runs of ``mosaicml-h100`` are in published/: they serve nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from scipy.optimize import brentq

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.counting.config import Config
from osfmodel.counting.families import llama
from osfmodel.counting.modules import Model, attention, embedding, head, linear, norm
from osfmodel.counting.roofline import workload_of
from osfmodel.counting.stacks import Learned
from osfmodel.counting.training import TrainingSetup
from osfmodel.engine import predict_timeline
from osfmodel.entities.executors import FSDP
from osfmodel.entities.files.measurements import load_measurements
from osfmodel.entities.measurement import Measurement
from osfmodel.entities.workload import Layer, Workload
from osfmodel.ledger.as_used import Asked, Job, asked
from osfmodel.ledger.recipe import Settings, StatedRun
from osfmodel.ledger.sources import decoders
from osfmodel.ledger.sources.decoders import ALL, Decoder

SETTINGS: Mapping[str, Settings] = {
    "mosaicml-2023": decoders.mosaicml,
    "mosaicml-h100": decoders.mosaicml,
    "modalities-leonardo": decoders.modalities,
    "internevo": decoders.internevo,
    "fms-fsdp": decoders.fms_fsdp,
}
"""By source."""
HERE = Path(__file__).parent
PUBLISHED = ("mosaicml-h100",)
"""Sources in published/."""
GPUS = {"A100-40GB": "a100-40gb", "A100-64GB": "a100-64gb", "A100-80GB": "a100", "H100-80GB": "h100"}
"""Names in words, by those in the sources."""
STACKS = {"fms-fsdp": "compile", "mosaicml-2023": "composer", "mosaicml-h100": "composer"}
"""The sources that are not eager."""
HEADS = {768: 12, 1024: 16, 1536: 12, 2048: 16, 2560: 20, 7168: 56}
"""Heads by width of the model, where they are not 128 wide; modalities-2.7b has 32 of 80."""


class RunInWords(NamedTuple):
    """A run that can be said in words.

    model, setting: of a micro-batch
    recomputed: part of the blocks whose forward is repeated in backward
    smallest:   whether no run of its series has fewer GPUs
    """

    source: str
    run: Measurement
    model: Model
    setting: TrainingSetup
    recomputed: float
    stated: StatedRun
    smallest: bool

    @property
    def series(self) -> Hashable:
        """Everything that runs of one model share whose GPUs compute alike."""
        return _series(self.source, self.run, self.stated)


@lru_cache(maxsize=1)
def runs_in_words() -> tuple[RunInWords, ...]:
    """The runs of all sources in SETTINGS, in the order of their files."""
    found = []
    for source, settings in SETTINGS.items():
        runs = load_measurements(HERE / f"published/{source}.json" if source in PUBLISHED else source)
        said = [(run, one) for run, one in zip(runs, settings(runs), strict=True) if isinstance(one, StatedRun)]
        fewest: dict[Hashable, int] = {}
        for run, one in said:
            fewest[_series(source, run, one)] = min(run.workers, fewest.get(_series(source, run, one), run.workers))
        found += [_in_words(source, run, one, run.workers == fewest[_series(source, run, one)]) for run, one in said]
    return tuple(found)


def _series(source: str, run: Measurement, stated: StatedRun) -> Hashable:
    return source, run.workload, stated.series


def _in_words(source: str, run: Measurement, stated: StatedRun, smallest: bool) -> RunInWords:
    recomputed = {"yes": 1.0, "no": 0.0}
    told = dict(run.conditions).get("recomputed", "no")
    gpu, batch = GPUS[run.condition("gpu")], int(run.condition("batch_size"))
    setting = TrainingSetup(gpu, batch=batch, stack=STACKS.get(source, "eager"))
    part = recomputed[told] if told in recomputed else float(told)
    return RunInWords(
        source, run, _model(run.workload, int(run.condition("sequence"))), setting, part, stated, smallest
    )


@lru_cache(maxsize=256)
def _model(name: str, tokens: int) -> Model:
    if name in decoders.MOSAICML:
        layers, width = decoders.MOSAICML[name]
        inner = decoders.EXPANSION * width
        return _mpt(name, Decoder(layers, width, inner, decoders.VOCABULARY, False, True, 0, tokens, ALL), tokens)
    known = {**decoders.MODALITIES, **decoders.FMS_FSDP, "internlm-7b": decoders.INTERNLM_7B}
    decoder = known[name]
    heads = 32 if decoder.width == 2560 else decoder.width // 128
    config = {
        "model_type": "llama",
        "hidden_size": decoder.width,
        "intermediate_size": decoder.feed_forward,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": (decoder.keys or decoder.width) * heads // decoder.width,
        "vocab_size": decoder.vocabulary,
        "attention_bias": bool(decoder.biased),
    }
    return llama.build(Config(name, config), tokens)


def _mpt(name: str, decoder: Decoder, tokens: int) -> Model:
    """A model of llm-foundry: layer norms, learned positions, one matrix for queries, keys and values, GELU."""
    width, inner, heads = decoder.width, decoder.feed_forward, HEADS.get(decoder.width, decoder.width // 128)
    modules = [embedding("wte", decoder.vocabulary, width, tokens), embedding("wpe", decoder.positions, width, tokens)]
    blocks = tuple(f"blocks.{number}" for number in range(decoder.layers))
    scores = attention(tokens, heads, width // heads, causal=True)
    for block in blocks:
        modules += [
            norm(f"{block}.norm_1", width, tokens, bias=True),
            linear(f"{block}.attn.Wqkv", width, 3 * width, tokens, True),
            linear(
                f"{block}.attn.out_proj", width, width, tokens, True, 4 * width * tokens, 3 * width * tokens, scores
            ),
            norm(f"{block}.norm_2", width, tokens, bias=True),
            linear(f"{block}.ffn.up_proj", width, inner, tokens, True),
            linear(f"{block}.ffn.down_proj", inner, width, tokens, True, 2 * inner * tokens, inner * tokens),
        ]
    modules.append(norm("norm_f", width, tokens, bias=True))
    modules.append(head("head", width, decoder.vocabulary, tokens, tied=True))
    return Model(name, tuple(modules), tokens, blocks, causal=True)


def workload_in_words(one: RunInWords, learned: Learned | None = None) -> Workload:
    """The workload of a run's micro-batch; ``learned``: efficiencies other than those that come with osfmodel."""
    counted = workload_of(one.model, one.setting, one.run.workload, learned)
    again = one.model.blocks[: round(one.recomputed * len(one.model.blocks))]
    found = counted.recomputing(again)
    if one.source == "internevo":  # whose weights and gradients are in bfloat16
        found = replace(found, layers=tuple(map(_halved, found.layers)))
    return found


def _halved(layer: Layer) -> Layer:
    return replace(layer, gradient_bytes=layer.gradient_bytes // 2, dtype="bfloat16")


def asked_for(one: RunInWords, workload: Workload, micro_batches: int) -> Asked:
    """Workload, plan and prices of a run as a user would ask for them, of so many micro-batches."""
    pricing = pricing_of(load_cluster(one.run.cluster), one.run.workers, workload)
    plan = one.stated.plan(workload, pricing, micro_batches)
    return asked(Job(workload, one.run.cluster, plan, FSDP.conditions), one.run.workers)


def step_time(one: RunInWords, workload: Workload) -> float:
    """Seconds of a predicted step. Of micro-batches that are alike one is predicted, without the update."""
    if not one.stated.alike:
        return predict_timeline(*asked_for(one, workload, one.stated.micro_batches)).iteration_time
    found = asked_for(one, replace(workload, update_time=0), 1)
    assert found.plan.sharding is not None
    update = workload.update_time / found.plan.sharding.ranks(one.run.workers)
    return one.stated.micro_batches * predict_timeline(*found).iteration_time + update


def anchored(one: RunInWords, workload: Workload) -> float:
    """The factor on all times of ``workload`` with which the prediction of ``one`` takes as long as was measured."""

    def excess(factor: float) -> float:
        return step_time(one, workload.scaled(factor)) - one.run.iteration_time

    return float(brentq(excess, SLOWEST, 1 / SLOWEST, rtol=1e-6))


SLOWEST = 1e-3
"""Smallest factor on computation that is tried."""


def anchors(runs: Sequence[RunInWords]) -> dict[Hashable, RunInWords]:
    """The first run with the fewest GPUs of each series that has more than one."""
    found: dict[Hashable, list[RunInWords]] = {}
    for one in runs:
        found.setdefault(one.series, []).append(one)
    return {name: min(own, key=lambda one: one.stated.order) for name, own in found.items() if len(own) > 1}
