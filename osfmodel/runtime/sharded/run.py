"""``osf run --executor fsdp2``: train for real under one plan of ``fully_shard`` after the other, and measure it.

``fully_shard`` changes a model for good, so that each turn shards a copy. The collectives of the last iteration are
compared with those of the plan's program: their kinds, bytes, types, and order.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

from osfmodel.cost.pricing import Pricing
from osfmodel.counting import load_workload
from osfmodel.engine.strategies import lower
from osfmodel.entities.display import show_bytes
from osfmodel.entities.executors import FSDP
from osfmodel.entities.files.notation import written
from osfmodel.entities.measurement import COMPUTATION, CPU_SHARE, SHARDED_COMPUTATION, Measurement
from osfmodel.entities.plan import Plan
from osfmodel.entities.sharding import Sharding
from osfmodel.entities.workload import Workload
from osfmodel.runtime import training
from osfmodel.runtime.job import Place, Voice, Watchdog, require_agreement, require_torch
from osfmodel.runtime.sharded import mesh_of, replay_of_groups, require_shardable, shard, sharded_replay_step
from osfmodel.runtime.sharded.communication import SentCollective, ShardedCommunication
from osfmodel.runtime.training import TrainingSettings
from osfmodel.runtime.training.pace import SleepingPace
from osfmodel.runtime.training.run import RunRequest, default_of, keep_turns, plan_called
from osfmodel.runtime.training.subjects import TrainingSubject, agreed, trained

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


class ShardedTurn(NamedTuple):
    """A model that is ready to train.

    step: one iteration
    communication: of the model
    """

    step: Callable[[], Any]
    communication: ShardedCommunication


@dataclass(frozen=True, slots=True)
class ShardedJob:
    """The job of a run: its subject, which for a replay is no more than the workload; and its meshes, by Sharding."""

    subject: TrainingSubject
    settings: TrainingSettings
    place: Place
    meshes: Callable[[Sharding], Any]

    @property
    def workload(self) -> Workload:
        """The profile of what is trained."""
        return self.subject.workload

    def turn(self, plan: Plan) -> ShardedTurn:
        """A model, sharded by the plan. Raises PlanError if a module of the plan is not one of the model."""
        rules = plan.sharding
        assert rules is not None  # require_shardable
        mesh = self.meshes(replace(rules, groups=()))
        if not self.subject.real:
            pace = SleepingPace()
            communication = ShardedCommunication(rules.asynchronous, rules.reduce_inputs, pace.waiting)
            model = replay_of_groups(self.workload, plan, pace)
            shard(model, plan, self.workload, mesh, communication)
            update = self.workload.update_time / rules.ranks(self.place.world)
            return ShardedTurn(partial(sharded_replay_step(pace, communication.finish, update), model), communication)
        communication = ShardedCommunication(rules.asynchronous, rules.reduce_inputs, nullcontext)
        self.subject.begin(None, None)  # parameters as at first
        model, optimizer = deepcopy((self.subject.model, self.subject.optimizer))
        names = {id(tensor): name for name, tensor in model.named_parameters()}
        groups = [[names[id(tensor)] for tensor in group["params"]] for group in optimizer.param_groups]
        shard(model, plan, self.workload, mesh, communication)
        tensors = dict(model.named_parameters())
        for group, held in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = [tensors[name] for name in held]
            group["foreach"] = True  # one call for all shards, as on a GPU
        optimizer.register_step_pre_hook(lambda *_: communication.finish())
        return ShardedTurn(partial(self.subject.begin(None, optimizer), model), communication)


def require_installed(command: str) -> None:
    """Raise UsageError if PyTorch is not installed."""
    require_torch(command)


def run(
    asked: RunRequest, settings: TrainingSettings, place: Place, voice: Voice, watch: Watchdog
) -> list[Measurement]:
    """Run all turns; rank 0 keeps a file of finished ones. Raises whatever torch or the model does."""
    require_agreement(repr((asked, settings)))
    watch.telling = voice.progress
    job = _job(asked, settings, place)
    watch.patience += 2 * job.workload.compute_time
    plans = _plans(asked, job, watch)
    losses = _losses(plans, job, watch) if asked.verify else {}
    first = _first(asked, job, watch)
    runs: list[Measurement] = []
    for repeat in range(1, settings.repeats + 1):
        for label, plan in plans.items():
            beat = partial(watch.beat, f"running repeat {repeat} of plan {label!r}")
            own = {"repeat": str(repeat)}
            if label in losses:
                own["loss_difference"] = f"{losses[label]:.3g}"
            one = replace(first, plan=label, conditions=first.conditions + tuple(own.items()))
            runs.append(_measured(one, plan, job, beat))
            gc.collect()  # a sharded model is part of cycles
            if place.rank == 0:
                keep_turns(runs, settings.repeats * len(plans), asked.output, watch, voice.progress)
    return runs


def _job(asked: RunRequest, settings: TrainingSettings, place: Place) -> ShardedJob:
    meshes = cache(partial(mesh_of, workers=place.world))
    if not asked.real:
        workload = asked.variation.of(load_workload(asked.subject))
        return ShardedJob(TrainingSubject(None, None, workload, _no_begin, []), settings, place, meshes)
    known = None if asked.workload is None else load_workload(asked.workload)
    return ShardedJob(agreed(trained(asked.subject, place.device, known)), settings, place, meshes)


def _no_begin(plan: Plan | None, optimizer: Any) -> Callable[[Any], Any]:
    raise AssertionError("a replay is made anew for each plan")


def _plans(asked: RunRequest, job: ShardedJob, watch: Watchdog) -> dict[str, Plan]:
    """The plans, by their names relative to the file of measurements. Raises PlanError if one cannot be run."""
    pricing = asked.pricing(job.place.world).under(FSDP.conditions)
    found = {}
    for number, name in enumerate(asked.plans, 1):
        watch.beat(f"preparing plan {name} ({number} of {len(asked.plans)})")
        plan = plan_called(name, job.workload, pricing)
        if asked.asynchronous and plan.sharding is not None:
            plan = replace(plan, sharding=replace(plan.sharding, asynchronous=True))
        require_shardable(name, plan, job.workload, job.place.world)
        found[asked.relative(name)] = plan
    return found


def _first(asked: RunRequest, job: ShardedJob, watch: Watchdog) -> Measurement:
    """A measurement with everything that all runs share; files are relative to the measurement file."""
    subject, settings, place = job.subject, job.settings, job.place
    named = asked.workload or (job.workload.name if asked.real else asked.subject)
    names = asked.relative(named), asked.relative(asked.cluster or "unmeasured")
    first = training.first_of(subject, settings, place, names, None if asked.real else asked.variation)
    if not subject.real:
        return first
    told = (COMPUTATION, f"{training.computation(subject, settings, place, watch):.6g}")
    return replace(first, conditions=(*first.conditions, told))


def _losses(plans: Mapping[str, Plan], job: ShardedJob, watch: Watchdog) -> dict[str, float]:
    """The difference of each plan's losses from those of DDP's default."""

    def sharded(label: str) -> list[float]:
        beat = partial(watch.beat, f"comparing the losses of plan {label!r}")
        losses = training.losses_of(job.turn(plans[label]).step, job.settings, beat)
        gc.collect()
        return losses

    default = default_of(job.workload)
    each = {default.label: partial(training.losses_under, job.subject, default, job.settings, job.place, watch)}
    return training.loss_difference(each | {label: partial(sharded, label) for label in plans}, job.place)


def _measured(first: Measurement, plan: Plan, job: ShardedJob, beat: Callable[[], None]) -> Measurement:
    """One turn of a plan; ``first`` has everything that all of its iterations share."""
    beat()
    turn = job.turn(plan)
    communication = turn.communication

    def iteration() -> None:
        communication.sent.clear()
        turn.step()

    own: dict[str, str] = {}
    with ExitStack() as stack:
        if plan.sharding is not None and plan.sharding.replicas > 1:
            stack.enter_context(communication.noting_all_reduces())
        if job.subject.real:
            communication.silent = True
            own[SHARDED_COMPUTATION] = f"{training.slowest(turn.step, job.settings, job.place, beat):.6g}"
            communication.silent = False
        samples, used = training.timed(iteration, job.settings, job.place, beat)
    note = deviation_of(communication.sent, collectives_of(job.workload, plan, job.place.world))
    own |= {
        "collectives": in_words(communication.sent),
        "buckets_as_planned": "no: " + note if note else "yes",
        "carried_by": "collectives in the background, one by one"
        if communication.asynchronous
        else "collectives that block",
        CPU_SHARE: f"{used:.2f}",
        **FSDP.conditions,
        "sent": written(plan, job.workload),
    }
    return replace(first, samples=samples, conditions=first.conditions + tuple(own.items()))


def collectives_of(workload: Workload, plan: Plan, workers: int) -> list[SentCollective]:
    """The collectives of the plan's program, in the order of launch."""
    assert plan.sharding is not None
    rules, own = plan.sharding, next(iter(workload.gradients.dtypes), "")
    gather = rules.gather_dtype or own
    dtypes: Mapping[str, str] = dict.fromkeys(COLLECTIVES, rules.reduce_dtype or gather) | {"all_gather": gather}
    operations = lower(workload, plan, Pricing.free(workers)).operations
    return [SentCollective(one.kind, one.size, dtypes[one.kind]) for one in operations if one.kind in COLLECTIVES]


def deviation_of(sent: Sequence[SentCollective], planned: Sequence[SentCollective]) -> str:
    """The first difference of the collectives that were sent from those planned; "" if there is none."""
    if list(sent) == list(planned):
        return ""
    for number, (one, other) in enumerate(zip(sent, planned, strict=False), 1):
        if one != other:
            return f"FSDP2 sent {_said(one)} as collective {number}, where the plan has {_said(other)}"
    return f"FSDP2 sent {len(sent)} collectives, and the plan has {len(planned)}"


def _said(one: SentCollective) -> str:
    return f"{one.kind} of {one.bytes} bytes of {one.dtype}"


def in_words(sent: Sequence[SentCollective]) -> str:
    """The number and the bytes of each kind."""
    kinds = {kind: [one.bytes for one in sent if one.kind == kind] for kind in COLLECTIVES}
    return ", ".join(f"{len(those)} {kind} of {show_bytes(sum(those))}" for kind, those in kinds.items() if those)
