"""Replicas of several GPUs: the workload of one of them, with the collectives of its groups.

Collectives inside a replica are priced on the cluster and do not overlap with computation, but for those of tensor
groups where the words say so. Messages between the stages of a pipeline are assumed to overlap fully. A pipeline runs
one forward and one backward in turn (1F1B), and is idle for as many micro-batches as it has further stages; for as many
chunks if it is interleaved (Narayanan et al., 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from osfmodel.cost.nccl_words import gpu_in_words
from osfmodel.counting import in_words
from osfmodel.counting.blocks import outline
from osfmodel.counting.groups import Folded, Parallelism, Shard, folded_stages, stages_of
from osfmodel.counting.kernels import gpu_of, in_file, kernels_of
from osfmodel.counting.modules import Model
from osfmodel.counting.recipes import RECIPES
from osfmodel.counting.roofline import ideal_time, workload_of
from osfmodel.counting.stacks import LIKE, STACKS, clock_of, learned, table_of
from osfmodel.counting.training import BUDGET, FULL, NOTHING, SELECTIVE, TrainingSetup
from osfmodel.counting.words import gpu_said, model_of, on_gpu, parse_words
from osfmodel.engine.alike import kept
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_time
from osfmodel.entities.errors import CostError, UsageError
from osfmodel.entities.gpus import gpu_name, same_chip
from osfmodel.entities.modules import SHARDED, around
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.sharding import LAST_KEPT
from osfmodel.entities.workload import Layer, Workload
from osfmodel.planning.predictions import Given
from osfmodel.planning.scaling.messages import Price, beside_of, prices_of
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import PlanRule
from osfmodel.targets.named_plans import called, named_plan

DOUBT = 0.5
"""Relative error of the time of collectives inside a replica, assumed; published runs say how much wider or narrower
bands over several nodes are (profiles/counted-bands.json)."""
EXPERTS = ".experts."
"""Contained in the names of experts' parameters."""


def replica_workload(words: str, cluster: Cluster, groups: Parallelism) -> Workload:
    """The workload of one GPU of a replica on ``cluster``; of a pipeline, that of the slowest stage.

    words: a workload in words, such as ``llama3-70b:h100,seq8192,batch1,bf16``

    Raises UsageError for a workload that is not in words, or cannot be divided like that, and CostError for groups
    that the cluster has no prices for.
    """
    if not in_words(words):
        raise UsageError(
            f"{words!r} is a profile of one GPU: {groups.words} needs a workload in words, such as "
            + on_gpu_of("llama3-8b:h100,seq8192,batch1", cluster.name)
        )
    parsed = parse_words(words)
    return counted_replica(words, divided(model_of(parsed), cluster, groups, parsed.setting.stack))


@dataclass(frozen=True)
class Divided:
    """A model among the GPUs of a replica, for any batch and checkpointing.

    prices: the time of a message, by its collective and bytes, inside each kind of group
    folded: shards of the stages that differ, each with one of the blocks that are alike
    """

    model: Model
    groups: Parallelism
    prices: Mapping[str, Price]
    stack: str
    folded: Sequence[Folded]

    @cached_property
    def stages(self) -> tuple[list[Shard], list[int]]:
        """The whole shards of the stages that differ, and for each stage the place of its shard."""
        return _staged(self.model, self.groups, self.stack)


def divided(model: Model, cluster: Cluster, groups: Parallelism, stack: str) -> Divided:
    """``model`` among the GPUs of a replica on ``cluster``, as ``stack`` divides it. Raises as replica_workload."""
    try:
        prices = prices_of(cluster, groups)
    except CostError as error:
        raise CostError(f"{groups.words}: {error}") from None
    folds = folded_stages(model, groups, STACKS[stack].gathers, STACKS[stack].by_cost)
    return Divided(model, groups, prices, stack, folds)


def counted_replica(words: str, among: Divided) -> Workload:
    """The workload of one GPU of a replica that is divided already, as these words set it up."""
    setting, groups = parse_words(words).setting, among.groups
    shards, places = among.stages
    stages = [_workload(part, setting, words, among.prices) for part in shards]
    slowest = max(stages, key=lambda one: one.compute_time)
    _sizes.pop((words, groups), None)  # of a file that may have changed
    kept(_sizes, (words, groups), lambda: _sizes_of(stages, places))
    return replace(slowest, ideal_time=ideal_time(among.model, setting) / groups.gpus)


def outlined_replica(setting: TrainingSetup, among: Divided) -> tuple[float, int, int]:
    """Of the slowest stage seconds of a micro-batch, bytes of activations, and trained parameters, without its layers.

    None of them is larger than what :func:`counted_replica` has.
    """
    found = []
    parts = among.folded if foldable(setting) else [Folded(shard, {}) for shard in among.stages[0]]
    for one in parts:
        beside = {name: times for name, times, _ in beside_of(one.shard, setting, among.prices, (setting.batch,))}
        found.append((*outline(one.shard.model, setting, beside, one.more), one.trained))
    return max(found, key=lambda one: one[0])


def foldable(setting: TrainingSetup) -> bool:
    """Whether blocks that are alike take as long and keep as much: all or none of them checkpointed, none offloaded."""
    return not setting.offload and (setting.portion == 1 or setting.checkpointing in (NOTHING, BUDGET))


def _staged(model: Model, groups: Parallelism, stack: str) -> tuple[list[Shard], list[int]]:
    """The shards of a pipeline's stages as the stack divides them, as ``stages_of``."""
    return stages_of(model, groups, STACKS[stack].gathers, STACKS[stack].by_cost)


def on_gpu_of(workload: str, cluster: str, chip: bool = False) -> str:
    """A workload in words for the GPU of a cluster in words, if they name different ones; any other as it is.

    chip: of the same chip, another memory or slot is no different GPU; nor is it for measured kernels
    """
    gpu = gpu_in_words(cluster)
    if not gpu or not in_words(workload):
        return workload
    said = gpu_said(workload)
    own = gpu_name(gpu_of(said).called) if in_file(said) else said
    same = same_chip(own, gpu) if chip or in_file(said) else own == gpu
    return workload if not own or same else on_gpu(workload, gpu)


def _workload(shard: Shard, setting: TrainingSetup, words: str, prices: Mapping[str, Price]) -> Workload:
    """The workload of a stage; its doubt includes that of its collectives."""
    beside, fixed = {}, []
    for name, times, longer in beside_of(shard, setting, prices, (setting.batch, 2 * setting.batch)):
        beside[name] = times
        fixed.append(max(0.0, 2 * plain_sum(times) - plain_sum(longer)))
    found = workload_of(shard.model, setting, words, beside=beside)
    whole, whole_fixed = found.forward_time + found.backward_time, plain_sum(fixed)
    share = min(1.0, plain_sum(map(plain_sum, beside.values())) / found.compute_time)
    kept = min(1.0, ((found.fixed_share or 0.0) * whole + whole_fixed) / whole)
    return replace(found, doubt=found.doubt + DOUBT * share, fixed_share=kept)


def stack_of(workload: Workload) -> str:
    """Words on the stack that computes a workload in words, and on blocks that its host bounds."""
    words = parse_words(workload.name)
    model, stack = model_of(words), STACKS[words.setting.stack]
    if not model.tokens:
        return ""
    said = f"; computed by {stack.said} (stack={words.setting.stack})"
    if table_of(words.setting.gpu) in LIKE:
        own = clock_of(words.setting.gpu)
        shared = ", ".join(one.upper() for one in (own, *LIKE) if own in (one, LIKE.get(one)))
        said += f"; one clock in training is learned for {shared}"
    if (dtype := words.setting.dtype) in RECIPES:
        like = RECIPES[dtype].like
        untaught = f" (no published run: as fast as {like} where kernels are)" if like else ""
        said += f"; matrices of blocks in {RECIPES[dtype].said}{'' if dtype in learned().recipes else untaught}"
    if words.setting.checkpointing == BUDGET:
        said += "; what a budget repeats is approximated by operations for each byte that is kept"
    elif words.setting.checkpointing == SELECTIVE:
        said += f"; checkpointing is selective as {'Megatron' if stack.core else 'torchtitan'} has it"
    host = stack.host_time(words.setting.checkpointing == FULL, kernels_of(words.setting.gpu).pace)
    blocks = dict.fromkeys(model.blocks, 0.0)
    for layer in workload.layers:
        for name in around(layer.name):
            if name in blocks:
                blocks[name] += layer.forward_time + layer.backward_time
    bound = sum(math.isclose(time, host) for time in blocks.values())
    return said + (f"; launches bound {how_many(bound, 'block')} at {show_time(host)}" if bound else "")


def assumptions(groups: Parallelism, setting: TrainingSetup) -> str:
    """A remark on what is assumed."""
    said = [f"{groups.words}: its collectives are assumed not to overlap with computation"]
    if setting.overlap and groups.tensor > 1:
        said[0] += f", but for those of blocks' tensor groups, of which 1/{groups.tensor} is exposed"
    if groups.pipeline > 1:
        said.append("messages between stages to overlap fully, FSDP2 to reduce and to free after the last micro-batch")
    if groups.expert > 1:
        said.append("experts to get equal shares of the tokens")
    return ", ".join(said[:-1]) + " and " * (len(said) > 1) + said[-1]


def in_stages(plan: Given, groups: Parallelism) -> Given:
    """A plan as a pipeline runs it: with FSDP2, parameters and gradients stay whole until the last micro-batch.

    torchtitan does so by default. Plans that do not shard parameters reduce after the last micro-batch anyway.
    """
    label, rule = (
        (called(plan), named_plan(plan)) if isinstance(plan, str) else plan if isinstance(plan, tuple) else ("", plan)
    )
    if groups.pipeline == 1 or not isinstance(rule, PlanRule) or rule.objective.strategy not in SHARDED:
        return plan
    return label, rule._replace(form=LAST_KEPT)


def of_each_gpu(workload: Workload, groups: Parallelism, what_if: WhatIf, gpus: int, inside: bool = False) -> Workload:
    """The workload of each GPU in a step of all micro-batches, where there are so many GPUs. Raises as WhatIf.

    inside: whether they are on one node
    """
    replicas = groups.replicas(gpus)
    what_if = in_micro_batches(what_if, workload, replicas)
    grouped = in_groups(workload, groups, what_if.accumulate, gpus, what_if.share(replicas), inside)
    return what_if.of_workload(grouped, replicas)


def in_micro_batches(what_if: WhatIf, workload: Workload, replicas: int) -> WhatIf:
    """The changes with the global batch of a workload in words in micro-batches of its batch. Raises UsageError."""
    return what_if.in_micro_batches(replicas, workload.batch_size if in_words(workload.name) else None)


def in_groups(
    workload: Workload,
    groups: Parallelism,
    micro_batches: int,
    gpus: int,
    samples: int | None = None,
    inside: bool = False,
) -> Workload:
    """The workload with pipeline bubbles, activations in flight, and the memory of experts.

    Each micro-batch has its share of the bubble, and of the time for which its stage waits for the host unless all are
    ``inside`` a node. The memory of a pipeline is that of its fullest stage with ``samples``
    in a micro-batch, by default those of the workload. An expert is sharded between fewer ranks than other parameters,
    as many times fewer as ranks share the experts.
    """
    if groups.pipeline == groups.expert == 1:
        return workload
    layers: tuple[Layer, ...] = workload.layers
    ranks, expert_share, fullest = groups.ranks(gpus), 0.0, 1.0
    if groups.pipeline > 1:
        idle = (groups.pipeline - 1) / groups.chunks / micro_batches
        size = samples / workload.batch_size if samples and workload.batch_size else 1.0
        beside, fullest = _fullest(workload, groups, micro_batches, ranks, size)
        layers = tuple(replace(layer, peak_bytes=max(0, (layer.peak_bytes or 0) + beside)) for layer in layers)
        waiting = 0.0 if inside else _waiting(workload, groups) / 2
        forward, backward = (time + waiting for time in (workload.forward_time, workload.backward_time))
        layers = (*layers, Layer("pipeline", idle * forward + waiting, idle * backward + waiting, 0))
    if groups.expert > 1:
        experts = sum(layer.gradient_bytes for layer in layers if EXPERTS in layer.name)
        expert_share = experts / max(1, workload.gradient_bytes)
    return replace(workload, layers=layers, expert_share=expert_share, expert_parallel=groups.expert, fullest=fullest)


def _waiting(workload: Workload, groups: Parallelism) -> float:
    """Seconds by which the host of a stage takes longer than its GPU where it hands micro-batches to other nodes."""
    if groups.tensor == 1 or not in_words(workload.name):
        return 0.0
    words = parse_words(workload.name)
    stack = STACKS[words.setting.stack]
    blocks = set(model_of(words).blocks) if stack.handover else set()
    own = len({name for layer in workload.layers for name in around(layer.name) if name in blocks})
    again = words.setting.portion if words.setting.checkpointing == FULL else 0.0
    each = again * stack.host_time(True) + (1 - again) * stack.host_time(False)
    host = each + stack.handover * groups.tensor
    return max(0.0, own * host - workload.forward_time - workload.backward_time) if own else 0.0


def _kept_each(workload: Workload) -> float:
    """Bytes of parameters, gradients and optimizer state for each byte of gradients."""
    return _whole_each(workload) + (workload.state_bytes or 0) / max(1, workload.gradient_bytes)


def _whole_each(workload: Workload) -> float:
    """Bytes of parameters and gradients for each byte of gradients."""
    return 1 + (workload.weight_bytes or workload.gradient_bytes) / max(1, workload.gradient_bytes)


def _fullest(workload: Workload, groups: Parallelism, micro_batches: int, ranks: int, size: float) -> tuple[int, float]:
    """The fullest stage, as :func:`_stages`: that of ZeRO-1, with whole parameters and gradients and a part of the
    optimizer's state, and micro-batches ``size`` times as large.
    """
    whole = _whole_each(workload)
    each = (whole + (_kept_each(workload) - whole) / ranks) * max(1, workload.gradient_bytes)
    own = max(layer.peak_bytes or 0 for layer in workload.layers)
    return max(_stages(workload, groups, micro_batches), key=lambda one: size * (one[0] + own) + one[1] * each)


def _stages(workload: Workload, groups: Parallelism, micro_batches: int) -> list[tuple[int, float]]:
    """Each stage beside ``workload``, the slowest with one micro-batch: bytes of activations more, and parameters.

    Stage k of p keeps the activations of p - k micro-batches (from 0), if there are so many; with v chunks those of
    2 (p - k) - 1 + p (v - 1) chunks, as Megatron's schedule begins.
    """
    own = max(layer.peak_bytes or 0 for layer in workload.layers)
    found = []
    sizes = kept(_sizes, (workload.name, groups), lambda: _sizes_in_words(workload.name, groups))
    for stage, (stays, peak, parameters) in enumerate(sizes):
        begun: float = groups.pipeline - stage
        if groups.chunks > 1:
            begun = (2 * begun - 1 + groups.pipeline * (groups.chunks - 1)) / groups.chunks
        active = peak + round((min(begun, micro_batches) - 1) * stays)
        found.append((active - own, parameters / max(1, workload.gradient_bytes)))
    return found


_sizes: dict[tuple[str, Parallelism], list[tuple[int, int, int]]] = {}
"""For the stages of the last replicas: bytes of activations that stay, of their peak in backward, and of gradients."""


def _sizes_in_words(words: str, groups: Parallelism) -> list[tuple[int, int, int]]:
    """The sizes of a replica that was made in another process."""
    parsed = parse_words(words)
    shards, places = _staged(model_of(parsed), groups, parsed.setting.stack)
    return _sizes_of([workload_of(one.model, parsed.setting, words) for one in shards], places)


def _sizes_of(stages: Sequence[Workload], places: Sequence[int]) -> list[tuple[int, int, int]]:
    found = []
    for stage in stages:
        active = sum(layer.activation_bytes or 0 for layer in stage.layers)
        found.append((active, max(layer.peak_bytes or 0 for layer in stage.layers), stage.gradient_bytes))
    return [found[place] for place in places]
