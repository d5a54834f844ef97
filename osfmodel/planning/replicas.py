"""Replicas of several GPUs: the workload of one of them, with the collectives of its groups.

Collectives inside a replica are priced on the cluster and taken to hide behind nothing. Messages between the stages of
a pipeline are taken to hide. A pipeline runs one forward and one backward in turn (1F1B), and waits at both ends for as
many micro-batches as it has further stages.
"""

from __future__ import annotations

from dataclasses import replace

from osfmodel.cost.clusters import pricing_of, strided
from osfmodel.cost.pricing import Pricing
from osfmodel.counting import in_words
from osfmodel.counting.groups import Parallelism, Part, stages_of
from osfmodel.counting.roofline import FULL, WIDTHS, TrainingSetup, workload_of
from osfmodel.counting.words import model_of, parse_words
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Layer, Workload

DOUBT = 0.5
"""Part by which the time of collectives inside a replica may be off: taken, not measured."""
EXPERTS = ".experts."
"""Contained in the names of experts' parameters."""


def replica_workload(words: str, cluster: Cluster, groups: Parallelism) -> Workload:
    """The workload of one GPU of a replica on ``cluster``; of a pipeline, that of the slowest stage.

    words: a workload in words, such as ``llama3-70b:h100,seq8192,batch1,bf16``

    Raises UsageError for a workload that is not in words, one that is not shared like that, and groups that are larger
    than a node.
    """
    if not in_words(words):
        raise UsageError(
            f"{groups.words}: workload {words!r} was profiled on one GPU: only one in words is shared by groups, such "
            "as llama3-8b:h100,seq8192,batch1,bf16"
        )
    inside = groups.tensor * groups.context
    if inside > cluster.gpus_per_node:
        raise UsageError(
            f"{groups.words}: tensor and context groups of {inside} GPUs are larger than a node of {cluster.name}, "
            f"which has {cluster.gpus_per_node}"
        )
    parsed = parse_words(words)
    model = model_of(parsed)
    whole = workload_of(model, parsed.setting, words)
    prices = _prices(cluster, groups)
    stages = [_workload(part, parsed.setting, words, prices) for part in stages_of(model, groups)]
    slowest = max(stages, key=lambda one: one.compute_time)
    ideal = None if whole.ideal_time is None else whole.ideal_time / groups.gpus
    return replace(slowest, ideal_time=ideal)


def _prices(cluster: Cluster, groups: Parallelism) -> dict[str, Pricing]:
    """The prices inside each kind of group."""
    apart = strided(cluster, groups.tensor)
    sizes = {"tensor": (cluster, groups.tensor), "context": (apart, groups.context), "expert": (apart, groups.expert)}
    return {kind: pricing_of(where, size) for kind, (where, size) in sizes.items() if size > 1}


def _workload(part: Part, setting: TrainingSetup, words: str, prices: dict[str, Pricing]) -> Workload:
    """The workload of a stage, of which part of the doubt is that of its collectives."""
    sample = setting.batch * WIDTHS[setting.dtype]
    beside = {}
    for name, sent in part.sent.items():
        again = setting.checkpointing == FULL and any(name.startswith(f"{block}.") for block in part.model.blocks)
        times = [prices[one.group].cost(one.collective)(one.elements * sample) for one in sent]
        forward = plain_sum(time * one.forward for time, one in zip(times, sent, strict=True))
        backward = plain_sum(time * one.backward for time, one in zip(times, sent, strict=True))
        beside[name] = (forward, backward + (forward if again else 0.0))
    found = workload_of(part.model, setting, words, beside=beside)
    share = plain_sum(map(plain_sum, beside.values())) / found.compute_time
    return replace(found, doubt=found.doubt + DOUBT * share)


def note(groups: Parallelism) -> str:
    """A remark on what is assumed."""
    hidden = ", messages between stages to hide" if groups.pipeline > 1 else ""
    even = ", tokens to be shared evenly by experts" if groups.expert > 1 else ""
    return (
        f"{groups.words} as given: collectives inside a replica are taken to hide behind nothing{hidden}{even}; their "
        f"prices may be off by {DOUBT:.0%}, which is taken, not measured"
    )


def in_groups(workload: Workload, groups: Parallelism, micro_batches: int, gpus: int) -> Workload:
    """The workload of a replica's GPU with what depends on the number of micro-batches and of all GPUs.

    Each micro-batch has its share of the time that a pipeline waits. The first stage keeps as many of them as there are
    stages. An expert's shards are on as many fewer ranks as share the experts; the memory for that is on the safe side
    for replicated ones.
    """
    layers: tuple[Layer, ...] = workload.layers
    if groups.pipeline > 1:
        waiting = (groups.pipeline - 1) / micro_batches
        beside = (min(groups.pipeline, micro_batches) - 1) * sum(layer.activation_bytes or 0 for layer in layers)
        kept = (
            layer if layer.peak_bytes is None else replace(layer, peak_bytes=layer.peak_bytes + beside)
            for layer in layers
        )
        idle = Layer("pipeline", waiting * workload.forward_time, waiting * workload.backward_time, 0)
        layers = (*kept, idle)
    more = 0
    if groups.expert > 1:
        experts = sum(layer.gradient_bytes for layer in layers if EXPERTS in layer.name)
        state = 0 if workload.state_bytes is None else workload.state_bytes / workload.gradient_bytes
        more = round(experts * (groups.expert - 1) * (2 + state) / groups.ranks(gpus))
    fixed = workload.fixed_bytes if not more else (workload.fixed_bytes or 0) + more
    return replace(workload, layers=layers, fixed_bytes=fixed)
