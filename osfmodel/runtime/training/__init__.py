"""Train for real under one plan after the other, and measure it.

Plans take turns, repeat by repeat, in one process group, so that what drifts meanwhile meets them all. A sample is the
time of one whole iteration on rank 0 (forward, backward, communication, update), which the collectives keep in step
with the others.
"""

from __future__ import annotations

import gc
import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, isfinite, isnan, nan
from statistics import median
from typing import Any

from osfmodel.entities.batches import Variation
from osfmodel.entities.effects import COUNTED
from osfmodel.entities.errors import OsfError
from osfmodel.entities.executors import RUNTIME
from osfmodel.entities.files.notation import written
from osfmodel.entities.measurement import CPU_SHARE, Measurement, Source
from osfmodel.entities.plan import Plan
from osfmodel.runtime.executor import LIMIT, execute
from osfmodel.runtime.executor.admission import require_executable
from osfmodel.runtime.job import Place, Watchdog
from osfmodel.runtime.job.measuring import Meter, Use, share, threads_of
from osfmodel.runtime.training.ddp_buckets import Carried, Formed, Messages, deviation, formed_by
from osfmodel.runtime.training.replayed_model import hooks_count
from osfmodel.runtime.training.subjects import TrainingSubject

LEAST_WARM_UPS = 3
"""Minimum number of warm-ups: DDP has its buckets from the second iteration on, with static_graph from the third."""
USUAL_THREADS = 2
"""gloo's number of worker threads, if torch does not report it."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Settings of a run.

    iterations: measured iterations for each plan and repeat, after ``warm_ups``
    options: further arguments of DDP, the same for every plan
    limit: seconds for each collective of the executor; DDP's have that of the process group
    """

    iterations: int = 20
    repeats: int = 3
    warm_ups: int = LEAST_WARM_UPS
    options: dict[str, bool] = field(default_factory=dict)
    limit: float = LIMIT


@dataclass(frozen=True, slots=True)
class Ran:
    """One plan in one repeat (from 1): seconds of each measured iteration, and the buckets formed.

    ``deviation`` says how those differ from the plan, and why; "" if they do not. ``cpu_share`` is the processor time
    of the ranks over that of the cores (``job.cores``).
    """

    planned: Carried
    repeat: int
    samples: tuple[float, ...]
    formed: Formed
    deviation: str
    cpu_share: float


def run_all(
    subject: TrainingSubject, plans: Sequence[Carried], settings: TrainingSettings, place: Place, watch: Watchdog
) -> Iterator[Ran]:
    """Run every plan in every repeat; yield each once it is measured. Raises whatever torch or the model does."""
    for repeat in range(1, settings.repeats + 1):
        for planned in plans:
            doing = f"running repeat {repeat} of plan {planned.label!r}"
            yield _run(subject, planned, settings, place, (watch, doing, repeat))


def computation(subject: TrainingSubject, settings: TrainingSettings, place: Place, watch: Watchdog) -> float:
    """Seconds of an iteration of the bare model, which sends nothing, on the slowest rank: the median of iterations.

    All ranks run it at the same time, as they train. Raises whatever torch or the model does.
    """
    beat = partial(watch.beat, "measuring the computation of the bare model")
    beat()
    return slowest(partial(subject.begin(None, None), subject.model), settings, place, beat)


def slowest(step: Callable[[], Any], settings: TrainingSettings, place: Place, beat: Callable[[], None]) -> float:
    """Seconds of an iteration on the slowest rank, the median of iterations; ``beat`` as in :func:`timed`."""
    import torch.distributed as dist

    each: list[float] = [0.0] * place.world
    dist.all_gather_object(each, median(timed(step, settings, place, beat)[0]))
    return max(each)


def _run(
    subject: TrainingSubject,
    planned: Carried,
    settings: TrainingSettings,
    place: Place,
    turn: tuple[Watchdog, str, int],
) -> Ran:
    watch, doing, repeat = turn
    watch.beat(doing)
    model, ended = _prepared(subject, planned, settings, place)
    step = subject.begin(planned.plan, None)
    samples, used = timed(partial(step, model), settings, place, partial(watch.beat, doing))
    formed = ended()
    del model, step, ended
    gc.collect()  # DDP's hooks end with it, and it is part of a cycle
    note = deviation(planned, formed, subject.names, subject.workload)
    return Ran(planned, repeat, samples, formed, note, used)


def timed(
    step: Callable[[], Any], settings: TrainingSettings, place: Place, beat: Callable[[], None]
) -> tuple[tuple[float, ...], float]:
    """Seconds of each measured iteration, and the share of the cores that the ranks used meanwhile.

    ``beat`` is called before each iteration. Raises whatever torch or the model does.
    """
    samples: list[float] = []
    _meet(place)
    for number in range(settings.warm_ups + settings.iterations):
        beat()
        if number == settings.warm_ups:
            meter = Meter()
        begin = time.perf_counter()
        step()
        _finish(place)
        samples.append(time.perf_counter() - begin)
    return tuple(samples[settings.warm_ups :]), share(_gathered(place, meter.use()))


def executed(label: str, plan: Plan, subject: TrainingSubject) -> Carried:
    """``plan`` for the executor. Raises OsfError, with the plan's name and the reason, if it cannot run it."""
    try:
        plan.require_valid(subject.workload)
        require_executable(subject.model, subject.optimizer, subject.given(plan), subject.names)
    except OsfError as error:
        raise type(error)(f"the executor cannot run plan {label!r}: {error}") from None
    return Carried(label, plan, sent=written(plan, subject.workload))


def _prepared(
    subject: TrainingSubject, planned: Carried, settings: TrainingSettings, place: Place
) -> tuple[Any, Callable[[], Formed]]:
    """The model to train with, and a function for the end, which returns the buckets that were formed."""
    if not planned.sent:
        model, messages = wrapped(subject.model, planned, settings, place)
        return model, lambda: formed_by(model, messages)
    given = subject.given(planned.plan)
    executor = execute(subject.model, subject.optimizer, given, layers=subject.names, limit=settings.limit)

    def ended() -> Formed:
        executor.close()
        return Formed(planned.sizes)

    return subject.model, ended


def wrapped(model: Any, planned: Carried, settings: TrainingSettings, place: Place) -> tuple[Any, Messages | None]:
    """The model under DDP with the plan, and the hook that runs it if one is needed."""
    from torch.nn.parallel import DistributedDataParallel

    arguments: dict[str, Any] = {**settings.options, **planned.arguments}
    if place.device != "cpu":
        arguments["device_ids"] = [place.local_rank]
    if "init_sync" in inspect.signature(DistributedDataParallel.__init__).parameters:
        arguments["init_sync"] = False  # all ranks have rank 0's parameters already
    made = DistributedDataParallel(model, **arguments)
    if not planned.hook:
        return made, None
    messages = Messages(planned.sizes, place.world)
    made.register_comm_hook(None, _hook(messages))
    return made, messages


def _hook(messages: Messages) -> Callable[[object, Any], Any]:
    """The hook as a function without annotations, since DDP checks these."""

    def carry(state, bucket):  # type: ignore[no-untyped-def]
        return messages(state, bucket)

    return carry


def _meet(place: Place) -> None:
    import torch.distributed as dist

    dist.barrier(device_ids=None if place.device == "cpu" else [place.local_rank])


def _gathered(place: Place, own: Use) -> list[Use]:
    import torch.distributed as dist

    found: list[Any] = [None] * place.world
    dist.all_gather_object(found, own)
    return found


def _finish(place: Place) -> None:
    if place.device != "cpu":
        import torch

        torch.cuda.synchronize()


def loss_difference(each: Mapping[str, Callable[[], list[float]]], place: Place) -> dict[str, float]:
    """The largest relative difference of each plan's losses to those of the first, over all iterations and ranks.

    ``each``: label -> a run from the same parameters and the same seed. Infinite where only one of two losses is
    finite; NaN, if not that, where neither is, so that they cannot be compared. Raises whatever torch or the model
    does.
    """
    import torch.distributed as dist

    found: dict[str, float] = {}
    reference: list[float] = []
    for label, run in each.items():
        losses = run()
        reference = reference or losses
        ranks: list[Any] = [None] * place.world  # gathered, since a reduction by MAX may lose NaN
        dist.all_gather_object(ranks, apart(losses, reference))
        found[label] = furthest(ranks)
    return found


def apart(losses: Sequence[float], reference: Sequence[float]) -> float:
    """The :func:`furthest` relative difference between two runs' losses, iteration by iteration."""
    return furthest([_apart(one, other) for one, other in zip(losses, reference, strict=True)])


def _apart(one: float, other: float) -> float:
    if isfinite(one) and isfinite(other):
        return abs(one - other) / max(abs(other), 1e-30) if one != other else 0.0
    return inf if isfinite(one) or isfinite(other) else nan


def furthest(differences: Sequence[float]) -> float:
    """The largest difference; NaN before finite values, and infinity before NaN."""
    return max(differences, key=lambda difference: (difference == inf, isnan(difference), difference))


def losses_under(
    subject: TrainingSubject, planned: Carried, settings: TrainingSettings, place: Place, watch: Watchdog
) -> list[float]:
    """The loss of each iteration under a plan, warm-ups included. Raises whatever torch or the model does."""
    beat = partial(watch.beat, f"comparing the losses of plan {planned.label!r}")
    beat()
    model, ended = _prepared(subject, planned, settings, place)
    losses = losses_of(partial(subject.begin(planned.plan, None), model), settings, beat)
    ended()
    del model, ended
    gc.collect()
    return losses


def losses_of(step: Callable[[], Any], settings: TrainingSettings, beat: Callable[[], None]) -> list[float]:
    """The loss of each iteration, warm-ups included; ``beat`` is called before each."""
    losses = []
    for _ in range(settings.warm_ups + settings.iterations):
        beat()
        losses.append(float(step()))
    return losses


def conditions_of(subject: TrainingSubject, settings: TrainingSettings, place: Place) -> dict[str, str]:
    """Conditions that all plans of a run share, in words."""
    import torch

    conditions = {
        "backend": place.backend,
        "torch": str(torch.__version__),
        "device": "CPU" if place.device == "cpu" else torch.cuda.get_device_name(),
        "in_flight": _in_flight(place),
        "threads": str(torch.get_num_threads()),
        "what": "a model" if subject.real else "a replay",
        "repeats": str(settings.repeats),
    }
    return conditions | {name: str(value) for name, value in settings.options.items() if value}


def _in_flight(place: Place) -> str:
    """Collectives that the backend runs at once."""
    said = threads_of(place.backend)
    return f"{USUAL_THREADS}, assumed" if said is None else str(said)


def first_of(
    subject: TrainingSubject,
    settings: TrainingSettings,
    place: Place,
    names: tuple[str, str],
    variation: Variation | None,
) -> Measurement:
    """A measurement with all that the runs share. ``names``: workload and cluster; ``variation``: of a replay."""
    conditions = conditions_of(subject, settings, place) | ({} if variation is None else variation.conditions)
    return Measurement(
        *names,
        plan="ddp",
        workers=place.world,
        samples=(1.0,),
        warm_ups=settings.warm_ups,
        conditions=tuple(conditions.items()),
        source=source_of(place, settings, subject.notes),
    )


def measurement_of(ran: Ran, first: Measurement, losses: dict[str, float]) -> Measurement:
    """The measurement of one plan in one repeat, based on ``first``, which has everything that all share."""
    label = ran.planned.label
    own = {
        "repeat": str(ran.repeat),
        "buckets": " ".join(map(str, ran.formed.sizes)),
        "buckets_as_planned": "no: " + ran.deviation if ran.deviation else "yes",
        "carried_by": ran.planned.by,
        CPU_SHARE: f"{ran.cpu_share:.2f}",
    }
    if ran.planned.sent:
        own |= RUNTIME.conditions | {"sent": ran.planned.sent}
        if hooks_count(ran.planned.plan):
            own |= COUNTED
    if label in losses:
        own["loss_difference"] = f"{losses[label]:.3g}"
    return replace(first, plan=label, samples=ran.samples, conditions=first.conditions + tuple(own.items()))


def source_of(place: Place, settings: TrainingSettings, notes: Sequence[str]) -> Source:
    """The source of the figures."""
    said = f"{settings.iterations} iterations after {settings.warm_ups} of warm-up, on rank 0, plans taking turns"
    return Source("measured with osf run", "; ".join([f"{place.world} workers, {place.backend}, {said}", *notes]))
