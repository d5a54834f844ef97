"""Peak memory of training steps of real models, measured by PyTorch's own tracker and predicted from one profile each.

    python benchmarks/memory.py --profile      # osf profile of each model: profiles/workloads/NAME-cpu.json
    python benchmarks/memory.py --measure      # profiles/measurements/memory.json, what is not there; --again: all
    python benchmarks/memory.py                # what is there, held against predictions

Measured is the highest total of torch.distributed._tools.mem_tracker.MemTracker in the second iteration. Tensors have
no data (FakeTensorMode), and storages of the sizes of real ones, so that batches are measured that no memory here would
hold; --real measures the smallest batch of each model on real tensors too. One process stands for all workers:
collectives leave what a worker with equal gradients everywhere would have. The executor, its hooks, messages and
updates, and the models are those of real training. Predictions take the profile, made at another batch size in an
ordinary loop, and the plan; nothing is fitted.
"""

from __future__ import annotations

import argparse
import gc
import sys
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from osfmodel.cost.clusters import load_cluster, pricing_of
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.batches import at_batch
from osfmodel.entities.compression import top_k
from osfmodel.entities.files import profiles
from osfmodel.entities.files.measurements import load_measurements, save_measurements
from osfmodel.entities.files.notation import read, written
from osfmodel.entities.measurement import Measurement, Source
from osfmodel.entities.plan import Plan, one_by_one
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.ledger.sources.peak_memory import PRICING, judge
from osfmodel.planning.memory import MemoryBudget
from osfmodel.planning.memory.search import tune_memory
from osfmodel.runtime import executor
from osfmodel.runtime.executor import admission, error_feedback, messages, saving
from osfmodel.runtime.executor.saving import Recomputation
from osfmodel.runtime.profiler.driving import Driving, measure
from osfmodel.runtime.training.factories import Maker, Training, from_torchvision, from_transformers
from osfmodel.targets.named_plans import make_plan

PROFILED, BATCHES, WORKERS = 2, (8, 16, 32), 8
FOLDER = Path(__file__).resolve().parents[1] / "profiles"
KEPT = FOLDER / "measurements" / "memory.json"
LICENCE = "Apache-2.0, as this project"
MODELS = ("resnet50", "vgg16", "densenet121", "inception_v3", "vit_b_16", "bert", "gpt2")
SEQUENCE = 128
CAP = "cap:25MiB"
DENSITY = 0.01
SPARSE = f"sparse:{DENSITY:.0%},{CAP}"
PLAIN, PLANNED, PUBLISHED = "loop", "planned", "published"
TIMED = {"resnet50-cpu": "resnet50-memory"}
"""Profiles with the memory of another and times of a GPU, with which a plan is looked for."""
NETWORK, SELECTION = "ring:50us,10Gbps", 5e-10 * 20 / 4
"""For that: 10 Gbit/s Ethernet, and seconds per byte to choose entries on a V100 (benchmarks/memory_claims.py)."""
MARGIN, HEADROOM = 0.1, 0.03
"""Part of the saving from releasing and recomputing that sparse buckets may give up; and by how much predictions
may be too low."""


class Option(NamedTuple):
    """How a step is run: a plan by name, or an ordinary loop; every how manyth segment is computed again."""

    name: str
    plan: str = CAP
    release: bool = False
    every: int = 0


OPTIONS = (
    Option("an ordinary loop", PLAIN),
    Option("dense"),
    Option("release", release=True),
    Option("recompute all", every=1),
    Option("recompute every second", every=2),
    Option("release, recompute all", release=True, every=1),
    Option("sparse, residual", SPARSE),
    Option("sparse, mirror", f"{SPARSE},mirror"),
    Option("sparse, recompute all", SPARSE, every=1),
    Option("sparse, mirror, release, recompute all", f"{SPARSE},mirror", True, 1),
    Option("planned, sparse", PLANNED),
    Option("sparse as published", PUBLISHED),
    Option("sparse as published, recompute all", PUBLISHED, every=1),
)
DENSE, SAVING = "dense", "release, recompute all"
COMBINED = (
    "sparse as published",
    "sparse as published, recompute all",
    "sparse, mirror, release, recompute all",
    "planned, sparse",
)
"""Sparse alone; with what saves memory, as far as it then can; all of it by our executor; and as planned."""


def maker_of(name: str) -> Maker:
    """A model by name, with random weights. PyPI's torchvision may be built for another PyTorch; models need no part of
    it that is compiled."""
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    return from_transformers(name, SEQUENCE) if name in ("bert", "gpt2") else from_torchvision(name)


def workload_of(name: str) -> Workload:
    """Its profile."""
    return profiles.load_workload(f"{name}-cpu")


def profile(names: Sequence[str]) -> None:
    """Make profiles anew."""
    for name in names:
        found = measure(f"{name}-cpu", maker_of(name), PROFILED, Driving(steps=2, warm_up=2), lambda *_: None)
        source = replace(
            found.workload.source, origin="measured by osf profile, for benchmarks/memory.py", licence=LICENCE
        )
        profiles.save(replace(found.workload, source=source), FOLDER / "workloads" / f"{name}-cpu.json")
        print(f"{name}: {found.workload.compute_time:.3f} s", flush=True)


def plan_of(option: Option, workload: Workload, size: int) -> Plan | None:
    """The executor's plan at a batch of ``size``; None in an ordinary loop."""
    if option.plan in (PLAIN, PUBLISHED):
        return None
    if option.plan == PLANNED:
        return planned(workload, size)
    plan = make_plan(option.plan, workload, PRICING)
    return replace(plan, release=option.release, recompute=segments_of(option, workload))


def segments_of(option: Option, workload: Workload) -> tuple[str, ...]:
    """The segments that are recomputed."""
    return tuple(segment.name for segment in workload.segments[:: option.every]) if option.every else ()


def planned(workload: Workload, size: int) -> Plan:
    """The plan of osf tune --memory --sparse --mirror, for all but MARGIN of what releasing and recomputing saves."""
    timed = profiles.load_workload(TIMED[workload.name])
    cluster = load_cluster(NETWORK)
    cluster = replace(cluster, effects=replace(cluster.effects, select=SELECTION))
    seen, peaks = at_batch(timed, size), []
    again = tuple(segment.name for segment in timed.segments)
    for plan in (make_plan(CAP, seen, PRICING), replace(one_by_one(seen), release=True, recompute=again)):
        timeline = predict_timeline(seen, plan, pricing_of(cluster, WORKERS))
        peaks.append(memory_of(seen, plan, timeline, WORKERS).peak.bytes)
    dense, least = peaks
    demand = MemoryBudget(
        round((least + MARGIN * (dense - least)) / (1 + HEADROOM)), density=DENSITY, mirror=True, batch_size=size
    )
    return replace(tune_memory(timed, cluster, WORKERS, demand).after.plan, workload=workload.name)


def measured(maker: Maker, size: int, plan: Plan | None, real: bool, published: Sequence[str] | None = None) -> int:
    """The highest total of MemTracker in the second iteration, bytes: the optimizer has its state since the first.

    published: sparse as published, with these modules computed again, in the place of a plan
    """
    gc.collect()
    strange = tensors()  # kept until the end, so that no other has the id of one of them
    mode: AbstractContextManager[Any] = nullcontext() if real else FakeTensorMode()
    with mode, ExitStack() as left:
        with mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_"):  # which looks at numbers
            training = maker(size)
        momentum = 0.9 if published is None else 0.0  # which sparse sending has of its own
        optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-4, momentum=momentum)
        if published is not None:
            left.enter_context(as_published(training.model, optimizer, published))
        if plan is not None:
            left.enter_context(alone())
            left.enter_context(executed(training.model, optimizer, plan))
        training.model.train()
        step(training, optimizer)
        return tracked(training, optimizer, lambda: step(training, optimizer), strange)


def step(training: Training, optimizer: Any) -> None:
    """As osf profile makes it."""
    optimizer.zero_grad()
    if isinstance(training.batch, dict):
        loss = training.loss(training.model(**training.batch))
    else:
        inputs, targets = training.batch
        loss = training.loss(training.model(inputs), targets)
    loss.backward()
    optimizer.step()


def tensors() -> list[Any]:
    """All that there are."""
    return [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]


def tracked(training: Training, optimizer: Any, run: Callable[[], None], strange: Sequence[Any]) -> int:
    """Peak bytes of a run by torch's tracker, which is told of existing tensors except ``strange`` ones."""
    tracker, known = MemTracker(), {id(one) for one in training.model.state_dict(keep_vars=True).values()}
    known.update(map(id, strange))
    there = [one for one in tensors() if id(one) not in known]
    tracker.track_external(training.model, optimizer, *there)
    del there
    with tracker:
        run()
    return int(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])


@contextmanager
def executed(model: Any, optimizer: Any, plan: Plan) -> Iterator[None]:
    """Under the executor."""
    one = executor.execute(model, optimizer, plan)
    try:
        yield
    finally:
        one.close()


@contextmanager
def as_published(model: Any, optimizer: Any, again: Sequence[str]) -> Iterator[None]:
    """Deep Gradient Compression (Lin et al., ICLR'18) as its authors and libraries have it, of one of WORKERS ranks.

    Momentum and what was not sent are each as large as the gradients; the largest are searched in the magnitudes of a
    whole tensor; all that arrives is kept until backward has ended, and then put into the gradients, which stay.
    """
    states = {one: (torch.zeros_like(one), torch.zeros_like(one)) for one in model.parameters() if one.requires_grad}
    arrived: list[tuple[Any, Any, Any]] = []

    def compress(parameter: Any) -> None:
        momentum, unsent = states[parameter]
        momentum.mul_(0.9).add_(parameter.grad)
        unsent.add_(momentum)
        flat = unsent.view(-1)
        places = flat.abs().topk(top_k(flat.numel(), DENSITY), sorted=False).indices
        values = flat[places]
        flat[places] = 0
        momentum.view(-1)[places] = 0
        arrived.append((parameter, values.repeat(WORKERS), places.int().repeat(WORKERS)))

    def put(*_: Any) -> None:
        for parameter, values, places in arrived:
            parameter.grad.zero_().view(-1).index_add_(0, places, values)
        arrived.clear()

    handles = [one.register_post_accumulate_grad_hook(compress) for one in states]
    handles.append(optimizer.register_step_pre_hook(put))
    recomputation = Recomputation(model, again)
    try:
        yield
    finally:
        recomputation.undo()
        for handle in handles:
            handle.remove()


@contextmanager
def alone() -> Iterator[None]:
    """A job of WORKERS ranks with equal gradients, of which this process is one and the others do nothing."""
    dist.init_process_group("fake", rank=0, world_size=WORKERS, store=FakeStore())

    def looked_at(self: Any, whole: Any) -> Iterator[tuple[int, int]]:
        """Tensors without data cannot be asked."""
        self._section(whole, self._types[0]).isfinite().all()
        return iter(())

    try:
        with (
            mock.patch.object(admission, "_agree"),
            mock.patch.object(executor, "Channels", Equals),
            mock.patch.object(error_feedback.Packing, "faults", looked_at),
            mock.patch.object(saving, "veiled", unveiled),
            mock.patch.object(messages, "veiled", unveiled),
            mock.patch.object(error_feedback, "largest", first),
        ):
            yield
    finally:
        dist.destroy_process_group()


def first(magnitudes: error_feedback.Magnitudes, elements: int, count: int) -> Any:
    """Some places in place of the largest, by way of as many candidates as a sample of equal numbers leads one to."""
    step = (elements // error_feedback.SAMPLE) | 1
    sampled = -(-elements // step)
    rank = error_feedback.rank_of(count * sampled / elements)
    if step < error_feedback.LEAST_STEP or rank >= sampled // 2:
        return magnitudes(slice(None)).topk(count, sorted=False).indices
    parts = []
    for start in range(0, elements, error_feedback.PIECE):
        part = magnitudes(slice(start, start + error_feedback.PIECE))
        places = torch.arange(rank * step * part.numel() // elements)
        parts.append((places + start, part[places]))
    where, found = (torch.cat(rows) for rows in zip(*parts, strict=True))
    above = found > found.topk(count, sorted=False).values.min()
    return torch.cat([where[: count - 1].clone(), where[above.numel() - 1 :]])


def unveiled(tensor: Any, _: Any) -> Any:
    """The tensor itself: tensors without data cannot have a subclass."""
    return tensor


class Done:
    """A collective that ends as soon as the hook that has begun it, and asks whether it has ended, is left."""

    def __init__(self) -> None:
        self._asked = False

    def is_completed(self) -> bool:
        """Not yet, when asked for the first time."""
        asked, self._asked = self._asked, True
        return asked

    def wait(self) -> None:
        """Nothing to wait for."""


class Equals:
    """Channels between ranks that all hold what this one does."""

    def __init__(self, channels: int, device: Any, limit: float) -> None:
        self.world = WORKERS

    def all_reduce(self, tensor: Any) -> Done:
        """All the same."""
        tensor.mul_(self.world)
        return Done()

    def all_gather(self, whole: Any, part: Any) -> Done:
        """The same from all."""
        whole.view(self.world, -1).copy_(part)
        return Done()

    def drop(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


def runs(names: Sequence[str], real: bool, there: Collection[tuple[str, str, str]]) -> Iterator[Measurement]:
    """Every model, option and batch size but for those that are there."""
    source = Source(
        "measured with benchmarks/memory.py",
        f"MemTracker of torch {torch.__version__}, CPU, {'real tensors' if real else 'tensors without data'}; SGD with "
        f"momentum; collectives of one process that stands for all workers; sequences of {SEQUENCE} tokens",
        LICENCE,
    )
    for name in names:
        workload = workload_of(name)
        for option in OPTIONS:
            for size in BATCHES[:1] if real else BATCHES:
                known = option.plan != PLANNED or workload.name in TIMED
                if not known or (workload.name, option.name, str(size)) in there:
                    continue
                plan = plan_of(option, workload, size)
                published = segments_of(option, workload) if option.plan == PUBLISHED else None
                found = measured(maker_of(name), size, plan, real, published)
                stated = {"batch_size": str(size), "option": option.name}
                if plan is not None:
                    stated |= {"executor": "runtime", "sent": written(plan, workload)}
                workers = 1 if option.plan == PLAIN else WORKERS
                run = Measurement(
                    workload.name, "none", option.plan, workers, (), 2, tuple(stated.items()), source, peak_bytes=found
                )
                (row,) = judge([run]).rows
                error = "not predicted" if row.error is None else f"{row.error:+.2%}"
                print(f"{row.label}: {found / MIB:.1f} MiB, {error}", flush=True)
                yield run


def cell_of(run: Measurement) -> tuple[str, str, str]:
    """Identity of a measurement."""
    return run.workload, run.condition("option"), run.condition("batch_size")


def kept() -> dict[tuple[str, str, str], Measurement]:
    """The earlier measurements."""
    return {cell_of(run): run for run in load_measurements(KEPT)} if KEPT.exists() else {}


def save(run: Measurement) -> None:
    """Beside the other runs that there are, or in place of the same."""
    found = kept() | {cell_of(run): run}
    models, options = [f"{name}-cpu" for name in MODELS], [option.name for option in OPTIONS]
    order = sorted(found, key=lambda cell: (models.index(cell[0]), options.index(cell[1]), int(cell[2])))
    save_measurements("memory", [found[cell] for cell in order], KEPT)


def report(found: Sequence[Measurement]) -> Iterator[str]:
    """Errors by option and by model."""
    rows = judge(found).rows
    for what in ("option", "workload"):
        yield f"\n| {what} | rows | median error | worst | bias |\n|---|---|---|---|---|"
        groups: dict[str, list[float]] = {}
        for run, row in zip(found, rows, strict=True):
            if row.error is not None:
                key = run.workload if what == "workload" else run.condition("option")
                groups.setdefault(key, []).append(row.error)
                groups.setdefault("all", []).append(row.error)
        for key, errors in sorted(groups.items(), key=lambda pair: pair[0] == "all"):
            sizes = [abs(error) for error in errors]
            yield f"| {key} | {len(sizes)} | {median(sizes):.2%} | {max(sizes):.2%} | {median(errors):+.2%} |"


def sent_bytes(run: Measurement) -> float:
    """Bytes that each of WORKERS ranks sends in a step, by a ring's all-reduce and all-gather; not published."""
    workload = profiles.load_workload(run.workload)
    plan = read(run.condition("sent"), workload)
    sparsity = Sparsity(workload, workers=WORKERS)
    return sum(
        2 * (WORKERS - 1) / WORKERS * bucket.size
        if bucket.density is None
        else (WORKERS - 1) * sparsity.sent_bytes(bucket)
        for bucket in plan.buckets
    )


def conflict(found: Sequence[Measurement]) -> Iterator[str]:
    """The memory that sparse buckets add, and the saving that is left, as measured."""
    yield "\n| workload | batch | dense | saved | sparse as published | recomputed | ours | sent | planned | sent |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    cells = {cell_of(run): run for run in found}
    for name, size in dict.fromkeys((name, size) for name, _, size in cells):
        runs = {
            option: cells[name, option, size] for option in (DENSE, SAVING, *COMBINED) if (name, option, size) in cells
        }
        if not {DENSE, SAVING, *COMBINED[:3]} <= runs.keys():
            continue
        dense, least = runs[DENSE].peak_bytes or 0, runs[SAVING].peak_bytes or 0
        row = [name, size, f"{dense / MIB:.0f} MiB", f"{least / dense - 1:+.1%}"]
        for option in COMBINED:
            run = runs.get(option)
            peak = dense if run is None else run.peak_bytes or 0
            kept = "" if option == COMBINED[0] else f", {(dense - peak) / (dense - least):.0%} of it"
            row.append("" if run is None else f"{peak / dense - 1:+.1%}{kept}")
            if option in COMBINED[2:]:
                row.append("" if run is None else f"{sent_bytes(run) / sent_bytes(runs[DENSE]) - 1:+.0%}")
        yield f"| {' | '.join(row)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"some of {', '.join(MODELS)}; all if none is named")
    for name in ("profile", "measure", "again", "real"):
        parser.add_argument(f"--{name}", action="store_true")
    given = parser.parse_args()
    names = given.models or MODELS
    if given.profile:
        profile(names)
    if given.measure or given.real:
        found = []
        for run in runs(names, given.real, {} if given.again or given.real else kept()):
            found.append(run)
            if not given.real:
                save(run)
        print("\n".join(report(found)))
    elif not given.profile:
        found = load_measurements("memory")
        print("\n".join([*report(found), *conflict(found)]))


if __name__ == "__main__":
    main()
