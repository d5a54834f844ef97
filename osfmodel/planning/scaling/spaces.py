"""The space of layouts: groups inside a replica, micro-batches and checkpointing within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from osfmodel.counting.groups import DEGREES, Parallelism
from osfmodel.counting.modules import Model
from osfmodel.counting.training import FULL, NOTHING, SELECTIVE
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import suggestion
from osfmodel.targets.megatron import refusal

ANY = "any"
TRIED = (NOTHING, SELECTIVE, FULL)
"""Activation checkpointing that is tried."""
LARGEST_BATCH = 32
"""Largest micro-batch that is tried, in samples."""
LEAST_TOKENS = 4096
"""Tokens of a sample that each GPU of a context group keeps at least: shorter ones gain nothing by it."""
NAMES = {short: kind for kind, short in DEGREES.items()}


class Limit(NamedTuple):
    """The values that a layout may have of one thing: a number, at most a number, or one of some words."""

    most: int
    least: int = 1
    words: tuple[str, ...] = ()


class Layout(NamedTuple):
    """Groups inside a replica, samples of a micro-batch, micro-batches of a step, and activation checkpointing."""

    groups: Parallelism
    batch: int
    accumulated: int
    checkpointing: str


@dataclass(frozen=True, slots=True)
class Space:
    """The layouts that are tried.

    limits: of tp, cp, pp, ep, vpp, batch and ac, where there are any
    """

    limits: Mapping[str, Limit] = field(default_factory=dict)

    def sizes(self, name: str, whole: int) -> list[int]:
        """The divisors of ``whole`` that are within the limits."""
        most, least = self.limits.get(name, Limit(whole))[:2]
        return [size for size in range(least, min(most, whole) + 1) if whole % size == 0]

    @property
    def checkpointing(self) -> tuple[str, ...]:
        """The kinds of checkpointing that are tried."""
        return self.limits.get("ac", Limit(0, words=TRIED)).words

    def with_checkpointing_of(self, words: str) -> Space:
        """The space with the checkpointing of a workload in words, such as ``full:8/32``, where there is no limit."""
        parts = [part.strip() for part in words.split(",")]
        own = [part.removeprefix("ac=") for part in parts if part.startswith("ac=")]
        return Space({"ac": Limit(0, words=tuple(dict.fromkeys((*TRIED, *own)))), **self.limits})


def parse_space(text: str) -> Space:
    """``any``, or limits such as ``tp<=8,pp=1,ac=none|full``. Raises UsageError."""
    form = f"--layout {text!r}: write any, or limits such as tp<=8,pp=1,batch<=4,ac=none|full"
    limits: dict[str, Limit] = {}
    for part in text.split(",") if text.strip() != ANY else []:
        match = re.fullmatch(r"\s*(\w+)\s*(<=|=)\s*([\w|]+)\s*", part)
        if match is None or match[1] in limits:
            raise UsageError(form)
        if match[1] not in (*NAMES, "batch", "ac"):
            raise UsageError(f"{form}: {match[1]!r} is none of {', '.join((*NAMES, 'batch', 'ac'))}")
        name, relation, said = match.groups()
        if name == "ac":
            words = tuple(dict.fromkeys(said.split("|")))
            for word in words:
                if word not in TRIED:
                    raise UsageError(f"{form}: {suggestion(word, TRIED)}")
            limits[name] = Limit(0, words=words)
        elif not re.fullmatch("[1-9][0-9]{0,5}", said):
            raise UsageError(f"{form}: {part.strip()!r} needs a whole number from 1 on")
        else:
            limits[name] = Limit(int(said), int(said) if relation == "=" else 1)
    return Space(limits)


def of_one_gpu(text: str) -> str:
    """Limits with replicas of one GPU, but for groups that ``text`` limits. Raises UsageError.

    >>> of_one_gpu("tp<=8")
    'tp<=8,pp=1,cp=1,ep=1'
    """
    given = parse_space(text).limits
    return ",".join([text.strip()] * bool(given) + [f"{name}=1" for name in NAMES if name not in (*given, "vpp")])


def candidates(
    space: Space, cluster: Cluster, model: Model, gpus: int, samples: int, interleaves: bool = False
) -> Iterator[Layout]:
    """The layouts of ``gpus`` GPUs for a step of ``samples`` samples; ``interleaves``: whether pipelines may."""
    tokens, experts = model.tokens, max((module.experts for module in model.modules), default=0)
    inside = max(1, cluster.gpus_per_node)
    for tensor in space.sizes("tp", gpus):
        if tensor > inside and "tp" not in space.limits:
            continue
        for pipeline, context in product(space.sizes("pp", gpus // tensor), space.sizes("cp", gpus // tensor)):
            short = "cp" not in space.limits and context > 1 and tokens < LEAST_TOKENS * context
            if gpus % (tensor * pipeline * context) or short or tokens % context:
                continue
            replicas = gpus // (tensor * pipeline * context)
            if samples % replicas:
                continue
            share, ranks = samples // replicas, replicas * context
            groups = [
                Parallelism(tensor, pipeline, context, expert)
                for expert in (space.sizes("ep", experts) if experts else [1])
                if ranks % expert == 0
            ]
            for one, size, how in product(groups, space.sizes("batch", share), space.checkpointing):
                powers = "batch" in space.limits or size & (size - 1) == 0
                if powers and (size <= LARGEST_BATCH or "batch" in space.limits):
                    for chunks in _chunks(space, len(model.blocks), pipeline, share // size, interleaves):
                        yield Layout(replace(one, chunks=chunks), size, share // size, how)


def _chunks(space: Space, blocks: int, stages: int, micro_batches: int, interleaves: bool) -> Iterator[int]:
    """Chunks of a stage, as Megatron has them: rounds of all stages, and as many blocks in each chunk.

    Embedding and head may count as blocks. Without a limit one is tried and the most: their messages overlap with
    computation, so that fewer take longer and, from two on, keep more activations.
    """
    whole = blocks // stages if (interleaves or "vpp" in space.limits) and stages > 1 else 1
    most, least = space.limits.get("vpp", Limit(whole))[:2]
    found = [
        chunks
        for chunks in range(least, min(most, whole) + 1)
        if chunks == 1 or not refusal(blocks, stages, chunks, micro_batches)
    ]
    yield from found if "vpp" in space.limits else dict.fromkeys((*found[:1], *found[-1:]))
