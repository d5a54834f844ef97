"""Unusual models and loops under the executor: ``python -m tests.live.unusual GROUP`` compares each with DDP.

Ranks begin with parameters and buffers of their own, so that what does not travel is seen. With three ranks one of
them has a loss of 0 in each step: sums of what is left are the same in any order.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from osfmodel import Plan
from osfmodel.entities.errors import OsfError
from osfmodel.entities.plan import contiguous_plan
from osfmodel.runtime.executor import execute
from tests.live.executing import cut, main, sgd, told, workload_of

STEPS = 3
RULES = {
    "plain": {},
    "split": {"strategy": "split"},
    "overlap": {"forward_overlap": True},
    "k2": {"channels": 2},
    "release": {"release": True},
    "recompute": {"recompute": ("middle",)},
}
ALL = ("plain", "split", "overlap", "k2", "release")


class Case(NamedTuple):
    """A model, and how it is trained.

    step:   one step: of the model in training, the model itself, the optimizer, the executor or DDP, and the number
    rules:  those that it is trained under
    unused: whether parameters may lack a gradient
    """

    kind: Callable[[], nn.Module]
    step: Callable[..., None]
    optimizer: Callable[..., Any] = sgd
    rules: tuple[str, ...] = ALL
    unused: bool = False


class Layers(nn.Module):
    """Three linear layers and what a subclass makes of them; ``first`` and ``last`` run before and after."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 12), nn.Linear(12, 12), nn.Linear(12, 6)

    def forward(self, inputs):
        return self.last(self.middle(self.first(inputs).tanh()).tanh())


class ParameterGaps(Layers):
    """Weights cut out of a wider one, as of a fused QKV: rows of it, and columns."""

    def __init__(self):
        super().__init__()
        fused = torch.randn(12, 3 * 12) / 4
        self.middle.weight = nn.Parameter(fused.chunk(3, dim=1)[1])
        self.last.weight = nn.Parameter(torch.randn(12, 12)[::2, :].t().contiguous().t() / 4)
        self.first.weight = nn.Parameter((torch.randn(8, 24) / 4)[:, ::2].t())


class BufferGaps(Layers):
    """Buffers with gaps, of every other column, transposed, and one of the weights' own memory."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(12, 24)
        self.register_buffer("columns", whole[:, ::2])
        self.register_buffer("turned", whole[:, 1::2].t())
        self.register_buffer("frozen_rows", torch.randn(24, 6)[::2])

    def forward(self, inputs):
        carried = self.middle(self.first(inputs).tanh()) @ self.columns + self.turned.sum(0)
        return self.last(carried.tanh()) + self.frozen_rows.mean(0)


class BufferExpanded(Layers):
    """A buffer of one element that says 100,000, and one of one row."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.randn(1).expand(100_000))
        self.register_buffer("shift", torch.randn(1, 6).expand(5, 6))

    def forward(self, inputs):
        return super().forward(inputs) * self.scale[99_999] + self.shift[4]


class BufferKinds(Layers):
    """Buffers of types that gloo has no sums of, among them one without elements and one without dimensions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("short", torch.randint(-9, 9, (6,)).to(torch.int16))
        self.register_buffer("coarse", torch.randn(6).to(torch.float8_e4m3fn))
        self.register_buffer("wave", torch.randn(6, dtype=torch.complex64))
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("one", torch.randn(()).to(torch.float16))
        self.register_buffer("flags", torch.rand(6) > 0.5)

    def forward(self, inputs):
        extra = self.short * self.coarse.float() + self.wave.real + self.flags * self.one
        return super().forward(inputs) + extra


def of_loss(model, number):
    """A loss on a batch of this rank's own; 0 times it where its turn is to add nothing."""
    rank, world = dist.get_rank(), dist.get_world_size()
    inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(number * world + rank))
    return model(inputs).square().mean() * weight(number)


def weight(number):
    """Of the loss of this rank in a step."""
    world = dist.get_world_size()
    return 0.0 if world > 2 and number % world == dist.get_rank() else 1.0


def plainly(model, bare, optimizer, executor, number):
    """Train in the usual loop."""
    of_loss(model, number).backward()
    optimizer.step()
    optimizer.zero_grad()


MEMORY = {
    "parameters with gaps": Case(ParameterGaps, plainly),
    "buffers with gaps": Case(BufferGaps, plainly),
    "buffers expanded": Case(BufferExpanded, plainly),
    "buffers of all types": Case(BufferKinds, plainly),
}


class Empty(Layers):
    """A parameter of no elements."""

    def __init__(self):
        super().__init__()
        self.empty = nn.Parameter(torch.zeros(0, 3))


class Complex(nn.Module):
    """Complex weights."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 7, dtype=torch.complex64), nn.Linear(7, 5, dtype=torch.complex64)

    def forward(self, inputs):
        return self.last(self.first(inputs.to(torch.complex64)).tanh()).abs()


class Checkpointing(Layers):
    """Layers under checkpoints, reentrant ones except under DDP, which loses count of their gradients."""

    def __init__(self, *names, branch=False):
        super().__init__()
        self.names, self.reentrant = names, True
        self.branch = nn.Linear(12, 12) if branch else None

    def forward(self, inputs):
        carried = inputs.requires_grad_()
        for name in ("first", "middle", "last"):
            run = partial(self.run, name)
            inside = name in self.names
            carried = checkpoint(run, carried, use_reentrant=self.reentrant) if inside else run(carried)
        return carried

    def run(self, name, carried):
        return getattr(self, name)(carried).tanh()


def settled(executor):
    """Wait for what is put off, where there is such a thing."""
    getattr(executor, "synchronize", lambda: None)()


def with_copy(model, bare, optimizer, executor, number, copied=copy.deepcopy):
    """A copy of the model as a teacher, which is trained for a step of its own."""
    settled(executor)
    teacher = copied(bare)
    of_loss(teacher, number).backward()
    with torch.no_grad():
        for tensor in teacher.parameters():
            tensor.sub_(0.1 * tensor.grad)
    inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(number))
    loss = of_loss(model, number) + (teacher(inputs) * bare(inputs)).mean() * weight(number)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def pickled(model):
    """The model by way of a file."""
    kept = BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


def functionally(model, bare, optimizer, executor, number):
    """A second forward of other tensors, made of the parameters; and of Parameters that nothing trains."""
    loss = of_loss(model, number)
    inputs = torch.randn(5, 8, generator=torch.Generator().manual_seed(number))
    other = {name: 0.9 * tensor for name, tensor in bare.named_parameters()}
    loss = loss + functional_call(bare, other, inputs).square().mean() * weight(number)
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in bare.named_parameters()}
    functional_call(bare, leaves, inputs).sum().backward()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def compiled(model, bare, optimizer, executor, number):
    """Forward and backward by aot_eager, except under DDP."""
    if number == 0:
        bare.__dict__["made"] = torch.compile(bare, backend="aot_eager")
    of_loss(model if model is not bare else bare.__dict__["made"], number).backward()
    optimizer.step()
    optimizer.zero_grad()


def compiled_inside(model, bare, optimizer, executor, number):
    """One layer compiled in place."""
    if number == 0 and model is bare:
        bare.middle.compile(backend="aot_eager")
    plainly(model, bare, optimizer, executor, number)


WAITING = ("plain", "split", "overlap", "k2")
"""All rules but release, which goes without ``unused``."""
EAGER = ("plain", "split", "k2")
"""Rules under which gradients are ordinary tensors after backward."""
FEW = ("plain", "overlap", "release")
ENDS = {
    "empty": Case(Empty, plainly, rules=WAITING, unused=True),
    "complex": Case(Complex, plainly),
    "deep copy": Case(Layers, with_copy, rules=(*FEW, "recompute")),
    "pickled": Case(Layers, partial(with_copy, copied=pickled), rules=(*FEW, "recompute")),
    "functional_call": Case(Layers, functionally, rules=FEW),
    "compiled": Case(Layers, compiled, rules=FEW),
    "compiled inside": Case(Layers, compiled_inside, rules=FEW),
}
for names in (("first",), ("middle",), ("last",), ("middle", "last"), ("first", "middle", "last")):
    kind, what = partial(Checkpointing, *names), f"checkpoint {' '.join(names)}"
    ENDS[what] = Case(kind, plainly, rules=FEW)
    ENDS[f"{what}, unused"] = Case(partial(kind, branch=True), plainly, rules=("plain", "overlap"), unused=True)


def plan_of(workload, rule):
    """A plan of three buckets at most under a rule; with two channels tensors are cut."""
    count = len(workload.gradients)
    plan = cut(workload) if rule == "k2" else contiguous_plan(workload, sorted({1, (count + 1) // 2, count}))
    return replace(plan, **RULES[rule])


def trained(case, plan):
    """Parameters and buffers after a few steps, under DDP where there is no plan.

    DDP begins with the same on all ranks and lets go of buffers, some of which it cannot send.
    """
    torch.manual_seed(7 + (0 if plan is None else dist.get_rank()))
    model = case.kind()
    optimizer = case.optimizer(model)
    handle: Any = None
    if plan is None:
        model.reentrant = False
        ignored = [name for name, _ in model.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        handle = DistributedDataParallel(model, find_unused_parameters=case.unused)
    else:
        handle = execute(model, optimizer, plan, limit=60, unused=case.unused)
    for number in range(STEPS):
        case.step(handle if plan is None else model, model, optimizer, handle, number)
    if plan is not None:
        handle.close()
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]


def apart(found, reference):
    """'' where all are the same, bit by bit; else which are not."""
    pairs = zip(found, reference, strict=True)
    return ", ".join(str(k) for k, (one, other) in enumerate(pairs) if not same(one, other))


def same(one, other):
    """Whether two tensors are equal; of those of a type without comparison in float32."""
    return torch.equal(*(tensor.float() if tensor.dtype.itemsize == 1 else tensor for tensor in (one, other)))


def compared(cases):
    """{case and plan: '' where parameters and buffers are those of the reference; else which are not, or the error}"""
    found = {}
    for name, case in cases.items():
        reference = trained(case, None)
        for rule in case.rules:
            try:
                found[f"{name}: {rule}"] = apart(trained(case, plan_of(workload_of(case.kind()), rule)), reference)
            except (OsfError, RuntimeError) as error:
                found[f"{name}: {rule}"] = f"{type(error).__name__}: {error}"
    return found


def refused():
    """Messages of execute(), or of the loop after it, to unsuitable models and to ranks with other models."""
    return {what: told(work) for what, work in REFUSED.items()}


def executed(model, rule="plain", **how):
    """The executor of a model under one bucket."""
    return execute(model, sgd(model), plan_of(workload_of(model), rule), limit=60, **how)


def with_buffer(buffer):
    """A model with a buffer called "extra"."""
    model = Layers()
    model.register_buffer("extra", buffer)
    return model


def lazily():
    """A model whose first layer has no shape yet."""
    execute(nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3)), None, Plan("small", ()))


def expanded():
    """A parameter that has one row three times."""
    model = Layers()
    model.last.bias = nn.Parameter(torch.zeros(1).expand(6))
    executed(model)


def unfolded():
    """A parameter whose rows overlap."""
    model = Layers()
    model.last.bias = nn.Parameter(torch.zeros(8).unfold(0, 6, 1)[0])  # which alone shares nothing
    executed(model)
    model.last.extra = nn.Parameter(torch.zeros(8).unfold(0, 6, 1))
    executed(model)


def shared():
    """One layer in two reentrant checkpoints: autograd adds to its gradient twice."""
    model = Checkpointing("first", "middle", "last")
    model.last = model.middle
    executed(model)
    of_loss(model, 0).backward()


def copied():
    """A copy of a model some of whose updates are put off."""
    model = Layers()
    optimizer = sgd(model)
    executor = execute(model, optimizer, plan_of(workload_of(model), "overlap"), limit=60)
    plainly(model, model, optimizer, executor, 0)
    said = told(partial(copy.deepcopy, model))
    plainly(model, model, optimizer, executor, 1)  # which goes on
    executor.close()
    raise ValueError(said)


def reformatted():
    """Another order of memory than at execute(), which fused optimizers would not notice."""
    model = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 3, 2))
    executed(model)
    of_loss(model.to(memory_format=torch.channels_last), 0).backward()


REFUSED = {
    "reformatted": reformatted,
    "lazy": lazily,
    "expanded": expanded,
    "unfolded": unfolded,
    "meta": lambda: executed(with_buffer(torch.empty(3, device="meta"))),
    "sparse": lambda: executed(with_buffer(torch.eye(3).to_sparse())),
    "sizes": lambda: executed(with_buffer(torch.zeros(2 + dist.get_rank()))),
    "absent": lambda: executed(with_buffer(torch.zeros(2)) if dist.get_rank() else Layers()),
    "shared": shared,
    "copied": copied,
}


def loops():
    """Of the cases in tests.live.odd_loops."""
    from tests.live.odd_loops import LOOPS

    return compared(LOOPS)


def turns():
    """Each case of every group under one of its plans by turns."""
    from tests.live.odd_loops import LOOPS

    cases = (MEMORY | ENDS | LOOPS).items()
    return compared(
        {name: case._replace(rules=case.rules[k % len(case.rules) :][:1]) for k, (name, case) in enumerate(cases)}
    )


SCENARIOS = {
    "turns": turns,
    "memory": partial(compared, MEMORY),
    "ends": partial(compared, ENDS),
    "loops": loops,
    "refused": refused,
}


if __name__ == "__main__":
    main(SCENARIOS, *sys.argv[1:])
