"""The choice between DDP, ZeRO, FSDP2 and HSDP: the strategies at each worker count, and the verdict in words.

``planning.tuning.choosing`` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

from osfmodel.counting import in_words
from osfmodel.counting.groups import OPTIONS, Parallelism
from osfmodel.counting.kernels import gpu_of
from osfmodel.counting.stacks import COMPILE, EAGER
from osfmodel.counting.training import FULL
from osfmodel.counting.words import at_samples, parse_words, with_parts
from osfmodel.engine.levels import Footprint
from osfmodel.engine.run import SIMULATED, LongRun
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many, show_bytes, show_predicted_time, show_share
from osfmodel.entities.errors import DataError
from osfmodel.entities.gpus import Gpu, gpu_on_data_sheet
from osfmodel.entities.plan import Plan
from osfmodel.entities.timeline import Timeline
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import Chance, Prediction, Tuning
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import MemoryLimit
from osfmodel.solve.verdicts import NO, SURE, TIGHT, YES, chance_to_fit, reserved_for, reserved_of, shortfall, slowed

REPLICATED_PLAN = "ddp"
"""The strategy to stay with where no other is faster beyond doubt."""


NEAR = 0.7
"""Part of a GPU's memory from which on PyTorch's allocator is simulated."""


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """A strategy at one worker count.

    peak: its highest level of memory; None where the workload does not say enough
    fits: YES, TIGHT or NO, whether a GPU has room for it; None without a limit
    chance: that it has
    reserved: bytes that PyTorch's allocator takes for the peak, as published runs did
    limit: bytes that a GPU has for it
    """

    prediction: Prediction
    peak: Footprint | None = None
    fits: str | None = None
    chance: float | None = None
    reserved: int | None = None
    limit: int | None = None

    @property
    def name(self) -> str:
        """The name of its plan."""
        return self.prediction.name

    @property
    def time(self) -> float:
        """Seconds of a step."""
        return self.prediction.iteration_time

    @property
    def expected_time(self) -> float:
        """Seconds of a step to expect where memory may not be enough, by which tight strategies are compared."""
        return self.time * (1.0 if self.chance is None else slowed(self.chance))


def reserved_near(row: StrategyRow, workers: int) -> int | None:
    """Bytes that PyTorch's allocator takes for a strategy where a GPU has room: simulated from NEAR of the limit on.

    Below that, and where nobody knows what the optimizer keeps, as published runs did. It gives free segments back
    before memory runs out, so that more than the limit may be taken and still fit.
    """
    if row.peak is None or row.limit is None or row.peak.bytes < NEAR * row.limit:
        return row.reserved
    workload = row.prediction.bound.question.workload
    return row.reserved if workload.state_bytes is None else reserved_for(workload, *shorter(row.prediction), workers)


def chance_of_room(workload: Workload, peak: int, limit: int, setup: str, held: Callable[[Workload], int]) -> float:
    """The chance that a GPU has room for a step that holds ``peak`` bytes, or those ``held`` as computed otherwise.

    Words that state no stack may mean eager kernels, whose norms keep more, or fused ones: where the first may not fit,
    the chance is the mean of both, taken to be as likely.
    """
    chance = chance_to_fit(reserved_of(peak, setup), limit, setup)
    if chance >= SURE or not in_words(workload.name):
        return chance
    other = workload.variant(("stack", COMPILE), partial(compiled, workload))
    return chance if other is workload else (chance + chance_to_fit(reserved_of(held(other), setup), limit, setup)) / 2


def compiled(workload: Workload) -> Workload:
    """A workload with what compiled blocks keep, where its words state no stack and it is taken to be eager PyTorch.

    Others, and the shard of a replica, are as they are.
    """
    text = workload.name
    if with_parts(text, stack="") != text or parse_words(text).setting.stack != EAGER:
        return workload
    other = at_samples(with_parts(text, stack=f"stack={COMPILE}"), workload.batch_size or 1)
    own, whole = ([(layer.name, layer.gradient_bytes) for layer in one.layers] for one in (workload, other))
    if own != whole:
        return workload
    layers = tuple(
        replace(one, activation_bytes=less.activation_bytes, peak_bytes=less.peak_bytes)
        for one, less in zip(workload.layers, other.layers, strict=True)
    )
    return replace(workload, layers=layers)


def shorter(prediction: Prediction) -> tuple[Plan, Timeline]:
    """The plan and the step of a prediction; of many micro-batches only some, which have the same peak."""
    plan, timeline = prediction.plan, prediction.timeline
    run = timeline.run
    if plan.sharding is None or not isinstance(run, LongRun):
        return plan, timeline
    short = replace(plan, sharding=replace(plan.sharding, micro_batches=SIMULATED))
    return short, run.short.timeline(timeline.compute_time)


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The strategies at one worker count.

    base:    DDP if it fits surely, else the first that does, else the first that may; times are compared with it. None
             if nothing fits
    fastest: of those that fit as surely
    chosen:  the one to take: the fastest if it is faster than the base beyond doubt, else the base
    chance:  of the fastest against the base; None where they are as fast
    """

    workers: int
    rows: tuple[StrategyRow, ...]
    base: StrategyRow | None = None
    fastest: StrategyRow | None = None
    chosen: StrategyRow | None = None
    chance: Chance | None = None

    def against(self, row: StrategyRow) -> float | None:
        """Part by which a step takes longer than under the base; None without one."""
        return None if self.base is None else row.time / self.base.time - 1

    def verdict(self, limit: int | None) -> str:
        """The strategy to take, and why, in a sentence or more."""
        if self.base is None or self.fastest is None or self.chosen is None:
            return f"Nothing fits. {_lacking(self._smallest, limit)}"
        saved = show_share(1 - self.fastest.time / self.base.time)
        chance = "" if self.chance is None else self.chance.words
        if self.chosen is not self.base:
            said = f"Take {self.chosen.name}: {saved} less time than {self.base.name}, and {chance}"
        elif self.chance is None:
            said = f"{self._keep}: no other strategy here is faster"
        else:
            said = f"{self._keep} unless you can measure: {self.fastest.name} is predicted to take {saved} less time"
            said += f", but it may be {chance}"
        misfit = next((row for row in self.rows if row.name == REPLICATED_PLAN and row.fits == NO), None)
        return f"{said}.{_room(self.chosen, limit)}{'' if misfit is None else ' ' + _lacking(misfit, limit)}"

    @property
    def _keep(self) -> str:
        name = "" if self.base is None else self.base.name
        return "Leave it at DDP" if name == REPLICATED_PLAN else f"Take {name}"

    @property
    def _smallest(self) -> StrategyRow:
        return min(self.rows, key=lambda row: 0 if row.peak is None else row.peak.bytes)


def possible(rows: Sequence[StrategyRow]) -> list[StrategyRow]:
    """The strategies that fit surely or without a limit; else those that may; none where none does."""
    sure = [row for row in rows if row.fits in (None, YES)]
    return sure or [row for row in rows if row.fits == TIGHT]


def _room(row: StrategyRow, limit: int | None) -> str:
    """A sentence on the memory of a strategy that fits."""
    if row.peak is None or limit is None:
        return ""
    return f" It takes {show_bytes(row.peak.bytes)} of {show_bytes(limit)}.{tight(row)}"


def tight(row: StrategyRow) -> str:
    """A sentence on a strategy that fits only perhaps; "" for others."""
    if row.fits != TIGHT or row.chance is None or row.reserved is None:
        return ""
    said = f"PyTorch reserves about {show_bytes(row.reserved)}, and runs that were predicted like this"
    return f" That is tight: {said} fit {show_share(row.chance)} of the time."


def _lacking(row: StrategyRow, limit: int | None) -> str:
    """A sentence on a strategy that does not fit."""
    assert row.peak is not None
    assert limit is not None
    workload = row.prediction.bound.question.workload
    repeated = in_words(workload.name) and parse_words(workload.name).setting.checkpointing == FULL
    needs = shortfall(row.peak, row.prediction.plan, limit, repeated, row.reserved, workload.batch_size)
    return f"{row.name} {needs}."


@dataclass(frozen=True, slots=True)
class StrategyTuning:
    """The choice at each worker count, and the settings for the last one.

    limit:   bytes that a step may hold on each GPU; None without a limit
    tuning:  of the chosen strategy; None where its settings are not searched for
    tuned:   the chosen strategy with tuned settings; None where the lines are of its default ones
    written: (ending) -> its lines, as a file with that ending has them
    endings: of such files
    """

    workload: Workload
    cluster: Cluster
    limit: int | None
    choices: tuple[StrategyChoice, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    what_if: WhatIf = WhatIf()
    tuning: Tuning | None = None
    tuned: StrategyRow | None = None
    written: Callable[[str], str] = field(default=lambda ending: "", compare=False)
    endings: tuple[str, ...] = ()

    @property
    def last(self) -> StrategyChoice:
        """The choice at the last worker count."""
        return self.choices[-1]

    @property
    def verdict(self) -> str:
        """The strategy to take at the last worker count, and why; its time and memory with tuned settings."""
        said = self.last.verdict(self.limit)
        if self.tuned is None:
            return said
        room = _room(self.tuned, self.limit).removeprefix(" It takes").removesuffix(".")
        return f"{said} Its tuned lines take {show_predicted_time(self.tuned.time)}{' and' * bool(room)}{room}."

    @property
    def plan(self) -> Plan | None:
        """The plan of the lines; None where nothing fits."""
        taken = self.tuned or self.last.chosen
        return None if taken is None else taken.prediction.plan

    @property
    def unchanged(self) -> bool:
        """Whether it is best to leave everything at DDP's defaults."""
        return self.tuning is not None and self.tuning.target == REPLICATED_PLAN and self.tuned is None

    @property
    def turns(self) -> str:
        """The choices by worker count: ``ddp with 2 to 16 workers, hsdp with 32 to 64 workers``."""
        return ", ".join(
            f"{name} with {span_of([choice.workers for choice in run], 'worker')}"
            for name, run in groupby(self.choices, lambda choice: choice.chosen.name if choice.chosen else "nothing")
        )


def span_of(counts: Sequence[int], what: str) -> str:
    """The first and the last of these numbers of ``what``, in words."""
    return how_many(counts[0], what) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} {what}s"


CONTEXT, COMMUNICATOR = 512 << 20, 400 << 20
"""Bytes that CUDA keeps for a process (400 to 600 MiB are usual), and NCCL for each group of ranks (100 to 700)."""


def room_of(workload: Workload, groups: Parallelism = Parallelism()) -> MemoryLimit | None:
    """The memory of the workload's GPU that CUDA and NCCL leave to a process, where it is one that is known."""
    gpu = gpu_on_data_sheet(workload.source.gpu)
    if gpu is None and in_words(workload.name):
        with suppress(DataError):  # a file that was measured, and is gone
            gpu = gpu_of(parse_words(workload.name).setting.gpu)
    return None if gpu is None else room_on(gpu, groups)


def room_on(gpu: Gpu, groups: Parallelism = Parallelism()) -> MemoryLimit:
    """The memory of a GPU that CUDA and NCCL leave to a process."""
    communicators = 1 + sum(kind in groups.document for kind in OPTIONS)
    return MemoryLimit(gpu.reported - CONTEXT - communicators * COMMUNICATOR)
