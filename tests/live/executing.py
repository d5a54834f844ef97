"""Ranks in the tests of the executor: ``python -m tests.live.executing SCENARIO...`` prints a line for each."""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from osfmodel import Layer, Plan, Workload
from osfmodel.entities.errors import OsfError
from osfmodel.entities.plan import Block, Bucket, Objective, contiguous_plan, grouped_plan
from osfmodel.runtime.executor import execute
from osfmodel.solve.caps import bucket_layout
from osfmodel.targets.ddp import DDP_LIMITS

STEPS, SHORT = 50, 6
RULES = {
    "plain": Objective(),
    "k2": Objective(channels=2),
    "k4": Objective(channels=4),
    "overlap": Objective(forward_overlap=True),
    "split": Objective(strategy="split"),
    "all": Objective(channels=2, forward_overlap=True, strategy="split"),
}


MANY = (
    ("merged", "plain"),
    ("wfbp", "plain"),
    ("merged", "split"),
    ("cut", "plain"),
    ("wfbp", "k2"),
    ("cut", "k4"),
    ("merged", "overlap"),
    ("mingled", "all"),
)
"""Each family of plans, and the rules that it is run under, in the longer trainings."""


class Small(nn.Module):
    """Convolutions, attention, a frozen layer and two that share their weight; dropout nowhere."""

    def __init__(self, bias=True):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU())
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.body = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, bias=bias)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight
        self.head = nn.Linear(16, 5)

    def forward(self, images):
        tokens = self.frozen(self.stem(images).flatten(2).transpose(1, 2))
        return self.head(self.second(self.first(self.body(tokens)).relu()).mean(1))


DTYPES = (torch.float32, torch.float64, torch.bfloat16)


class Mixed(nn.Module):
    """Layers of three dtypes in turn."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16, dtype=DTYPES[number % 3]) for number in range(6))

    def forward(self, images):
        carried = images.flatten(1)[:, :16]
        for layer in self.layers:
            carried = layer(carried.to(layer.weight.dtype)).tanh()
        return carried[:, :5].float()


class Choosing(nn.Module):
    """Three branches, of which each rank takes another in each forward: with two ranks one is used by none."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(512, 16), nn.Linear(16, 5)
        self.branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.turn = 0

    def forward(self, images):
        self.turn += 1
        chosen = self.branches[(self.turn * self.turn + dist.get_rank()) % 3]
        return self.head(chosen(self.stem(images.flatten(1)[:, :512]).tanh()).tanh())


def model_of(kind=Small):
    """The same on every rank."""
    torch.manual_seed(7)
    return kind()


def loss_of(model, number):
    """On a batch that each rank and each number has of its own."""
    return loss_at(model, number * dist.get_world_size() + dist.get_rank())


def loss_at(model, seed):
    """On the batch of a seed."""
    examples = torch.Generator().manual_seed(seed)
    images = torch.randn(6, 3, 16, 16, generator=examples).to(next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(images), torch.randint(5, (6,), generator=examples))


def sgd(model, **how):
    """SGD with momentum."""
    return torch.optim.SGD(groups_of(model), lr=0.05, momentum=0.9, **how)


def adamw(model, **how):
    """AdamW."""
    return torch.optim.AdamW(groups_of(model), lr=0.01, weight_decay=0.1, **how)


OPTIMIZERS = {
    "sgd foreach": partial(sgd, foreach=True),
    "sgd fused": partial(sgd, fused=True),
    "adamw foreach": partial(adamw, foreach=True),
    "adamw fused": partial(adamw, fused=True),
}


def groups_of(model):
    """Two groups of parameters with options of their own."""
    tensors = [tensor for tensor in model.parameters() if tensor.requires_grad]
    return [{"params": tensors[::2], "weight_decay": 0.01}, {"params": tensors[1::2], "lr": 0.02}]


def workload_of(model):
    """Its gradients, in an order in which they may become ready."""
    tensors = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    rows = [(name, tensor.numel() * tensor.element_size(), str(tensor.dtype)[6:]) for name, tensor in tensors]
    return Workload("small", tuple(Layer(name, 0, 1e-3, size, kind) for name, size, kind in rows))


def families(workload):
    """Plans of one dtype, by name, under the plainest rules."""
    count = len(workload.gradients)
    groups = bucket_layout(workload.gradients, DDP_LIMITS)
    return {
        "wfbp": contiguous_plan(workload, range(1, count + 1)),
        "ddp": grouped_plan(workload, groups),
        "merged": contiguous_plan(workload, [1, 3, 4, 9, count]),
        "mingled": grouped_plan(workload, [range(1, count, 2), range(0, count, 2)]),
        "cut": cut(workload),
    }


def cut(workload):
    """Every tensor in two pieces of unequal size, whose buckets do not stop at its ends."""
    blocks = []
    for name, size in zip(workload.gradients.names, workload.gradients.sizes, strict=True):
        first = size // 3 // 8 * 8
        blocks += [Block(name, 0, first), Block(name, first, size - first)] if first else [Block(name, 0, size)]
    ends = sorted({min(end, len(blocks)) for end in (0, 1, 4, 9, 10, len(blocks))})
    return Plan("small", tuple(Bucket(tuple(blocks[a:b])) for a, b in pairwise(ends)))


class Way(NamedTuple):
    """How a loop goes.

    micro_batches: backwards of a step, all but the last under no_sync() where ``quiet``
    set_to_none:   what zero_grad does
    clip:          the norm that gradients are clipped to
    scaled:        whether the loss is scaled, as for AMP
    cast:          whether forward computes in bfloat16, as AMP does
    skips:         whether every third step is left out
    unused:        whether parameters may be without a gradient
    closed:        whether forward and backward are a closure that step calls, as in Lightning
    """

    micro_batches: int = 1
    quiet: bool = True
    set_to_none: bool = True
    clip: float | None = None
    scaled: bool = False
    cast: bool = False
    skips: bool = False
    unused: bool = False
    closed: bool = False


WAYS = {"plain": Way(), "accumulated": Way(2), "amp": Way(scaled=True, cast=True)}


def train(kind, optimizer_of, plan, way=Way(), steps=STEPS):
    """Parameters after ``steps``, under DDP where ``plan`` is None, and the optimizer."""
    model = model_of(kind)
    optimizer = optimizer_of(model)
    trained = DistributedDataParallel(model, find_unused_parameters=way.unused) if plan is None else model
    executor = None if plan is None else execute(model, optimizer, plan, limit=60, unused=way.unused)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=way.scaled)
    for step in range(steps):
        if way.closed:
            optimizer.step(partial(closure, trained, optimizer, step))
            scheduler.step()
            continue
        for part in range(way.micro_batches):
            aloud = part == way.micro_batches - 1 or not way.quiet
            with nullcontext() if aloud else (executor or trained).no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=way.cast):
                    loss = loss_of(trained, step * way.micro_batches + part)
                scaler.scale(loss).backward()
        if executor is not None and (way.clip or way.scaled):
            executor.synchronize()
        if way.clip:
            nn.utils.clip_grad_norm_(model.parameters(), way.clip)
        if not way.skips or step % 3:
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        optimizer.zero_grad(set_to_none=way.set_to_none)
    if executor is not None:
        executor.close()
    return [tensor.detach().clone() for tensor in model.parameters()], optimizer


def closure(model, optimizer, number):
    """A closure that step calls."""
    loss = loss_of(model, number)
    optimizer.zero_grad()
    loss.backward()
    return loss


def apart(found, reference):
    """Relative distance of two models, in float64 the greatest of any element; -1 where ranks have different ones."""
    found, reference = ([tensor.detach() for tensor in model] for model in (found, reference))
    flat, other = (torch.cat([tensor.flatten().double() for tensor in model]) for model in (found, reference))
    everywhere = [torch.zeros_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, flat)
    if any(not torch.equal(flat, there) for there in everywhere):
        return -1.0
    if found[0].dtype == torch.float64:
        return float((flat - other).abs().max())
    return float((flat - other).norm() / other.norm())


def each():
    """{plan and rules: distance from DDP}, of all families under all rules, after a few steps."""
    reference, _ = train(Small, sgd, None, steps=SHORT)
    return {
        f"{name} {rule}": apart(train(Small, sgd, plan.under(rules), steps=SHORT)[0], reference)
        for name, plan in families(workload_of(model_of())).items()
        for rule, rules in RULES.items()
    }


def fifty():
    """{plan, rules, optimizer and way: distance from DDP}: every two of family, optimizer and way meet."""
    plans = families(workload_of(model_of()))
    found = {}
    for i, (optimizer, optimizer_of) in enumerate(OPTIMIZERS.items()):
        for j, (label, way) in enumerate(WAYS.items()):
            reference, _ = train(Small, optimizer_of, None, way)
            for name, rule in [pair for k, pair in enumerate(MANY) if (i + j + k) % 3 == 0]:
                made, _ = train(Small, optimizer_of, plans[name].under(RULES[rule]), way)
                found[f"{name} {rule}, {optimizer}, {label}"] = apart(made, reference)
    return found


def few():
    """{dtype: {plan, rules, optimizer and way: distance}}, for sums in another order than DDP's.

    In float32 attention is without biases: the gradient of that of its keys is zero but for rounding, which AdamW
    divides by itself. Nothing is computed in bfloat16: it makes one part in 250 of what differs by rounding.
    """
    found = {}
    for dtype, kind in {"float32": lambda: Small(bias=False), "float64": lambda: Small().double()}.items():
        plans, found[dtype] = families(workload_of(model_of(kind))), {}
        for k, (optimizer, label) in enumerate(
            pairs := (("sgd", "accumulated"), ("adamw", "plain"), ("adamw", "scaled"))
        ):
            way = Way(scaled=True) if label == "scaled" else WAYS[label]
            optimizer_of = {"sgd": sgd, "adamw": adamw}[optimizer]
            reference, _ = train(kind, optimizer_of, None, way)
            for name, rule in MANY[k :: len(pairs)]:
                made, _ = train(kind, optimizer_of, plans[name].under(RULES[rule]), way)
                found[dtype][f"{name} {rule}, {optimizer}, {label}"] = apart(made, reference)
    return found


def ways():
    """{way, plan and rules: distance from DDP that goes the same way}"""
    found = {}
    plans = families(workload_of(model_of()))
    every = {
        "summed": Way(2, quiet=False),
        "zeroed": Way(set_to_none=False),
        "clipped": Way(clip=0.1),
        "skipped": Way(skips=True),
        "closed": Way(closed=True),
    }
    for label, way in every.items():
        reference, _ = train(Small, adamw, None, way, SHORT)
        for name in ("wfbp", "merged", "cut"):
            for rule in ("plain",) if label in ("summed", "zeroed") else ("plain", "all"):
                made = train(Small, adamw, plans[name].under(RULES[rule]), way, SHORT)[0]
                found[f"{label} {name} {rule}"] = apart(made, reference)
    return found


def unused():
    """{way, plan and rules: distance from DDP that finds unused parameters}; AdamW moves what has a gradient of 0."""
    found = {}
    plans = families(workload_of(model_of(Choosing)))
    every = {"plain": Way(unused=True), "accumulated": Way(2, unused=True)}
    for label, way in (every | {"zeroed": Way(set_to_none=False, unused=True)}).items():
        reference, _ = train(Choosing, adamw, None, way, SHORT)
        for name in ("wfbp", "merged", "cut"):
            for rule in ("plain", "split") if label == "zeroed" else ("plain", "split", "overlap", "all"):
                made, _ = train(Choosing, adamw, plans[name].under(RULES[rule]), way, SHORT)
                found[f"{label} {name} {rule}"] = apart(made, reference)
    return found


def untouched():
    """{rules: which of the branches have a gradient after each backward}, and with DDP."""
    found = {}
    for rule in ("ddp", "plain", "overlap", "all"):
        model = model_of(Choosing)
        optimizer = sgd(model)
        plan = families(workload_of(model))["merged"].under(RULES.get(rule, Objective()))
        trained = DistributedDataParallel(model, find_unused_parameters=True) if rule == "ddp" else model
        executor = None if rule == "ddp" else execute(model, optimizer, plan, limit=60, unused=True)
        found[rule] = []
        for number in range(3):
            loss_of(trained, number).backward()
            if executor is not None:
                executor.synchronize()
            found[rule].append([branch.weight.grad is not None for branch in model.branches])
            optimizer.step()
            optimizer.zero_grad()
    return found


def growth():
    """{rules: how much 200 steps leave behind}: objects of Python, and bytes where the system tells."""
    found = {}
    for rule in ("plain", "all"):
        model = model_of(Choosing)
        optimizer = adamw(model)
        workload = workload_of(model)
        plan = contiguous_plan(workload, [4, len(workload.gradients)]).under(RULES[rule])
        executor = execute(model, optimizer, plan, limit=60, unused=True)
        images, seen = torch.randn(2, 512), []
        for number in range(1, 251):
            model(images).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number in (50, 250):
                executor.synchronize()
                seen.append((objects(), resident()))
        executor.close()
        found[rule] = {"objects": seen[1][0] - seen[0][0], "bytes": seen[1][1] - seen[0][1]}
    return found


def objects():
    """How many there are that Python keeps track of, tensors among them."""
    gc.collect()
    return len(gc.get_objects())


def resident():
    """Bytes of memory in use; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def measure():
    """An oracle shown failing: how far apart models are where ranks do not communicate, or all differ a little."""
    reference, _ = train(Small, sgd, None, steps=SHORT)
    model = model_of()
    optimizer = sgd(model)
    for step in range(SHORT):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    nearly = [1.001 * tensor for tensor in reference]
    return {"alone": apart(model.parameters(), reference), "other": apart(nearly, reference)}


def deferral():
    """Whether parameters are up to date as the next forward goes on, one of the stem and one of the head."""
    model = model_of()
    optimizer = sgd(model)
    executor = execute(model, optimizer, families(workload_of(model))["wfbp"].under(RULES["all"]), limit=60)
    found = []
    for finish in (executor.synchronize, partial(evaluate, model)):
        loss_of(model, 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        for go_on in (lambda: None, lambda: model.stem(torch.randn(1, 3, 16, 16)), finish):
            go_on()
            due = {gradient.name for gradient in executor.deferral.due}
            found.append([name not in due for name in ("stem.0.weight", "head.weight")])
    return found


def evaluate(model):
    """A part of the model alone, without gradients."""
    with torch.no_grad():
        model.stem(torch.randn(1, 3, 16, 16))


def dtypes():
    """{rules: distance from DDP} with several dtypes, in buckets of their own."""
    reference, _ = train(Mixed, sgd, None, steps=SHORT)
    gradients = workload_of(model_of(Mixed)).gradients
    groups = [[i for i, kind in enumerate(gradients.dtypes) if kind == str(one)[6:]] for one in DTYPES]
    plan = grouped_plan(workload_of(model_of(Mixed)), groups)
    return {
        rule: apart(train(Mixed, sgd, plan.under(rules), steps=SHORT)[0], reference) for rule, rules in RULES.items()
    }


class Summed(nn.Module):
    """Weights that are sums: autograd then uses one memory for the gradients of both parts, one of them a view."""

    def __init__(self):
        super().__init__()
        self.raw, self.delta = nn.Parameter(torch.randn(16, 5)), nn.Parameter(torch.randn(80))

    def forward(self, images):
        return images.flatten(1)[:, :16] @ (self.raw.tanh() + self.delta.view(16, 5))


class Joined(nn.Module):
    """Parameters that are put together, and added to what others made."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 5)
        self.upper, self.lower = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(3, 5))

    def forward(self, images):
        return (self.linear(images.flatten(1)[:, :16]).tanh() + torch.cat([self.upper, self.lower])).tanh()


class Prepared(nn.Module):
    """A model whose forward uses a tensor that a user's hook makes of a parameter."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(16, 16), nn.Linear(16, 5)
        self.head.second = nn.Parameter(torch.ones(5, 16))
        self.head.register_forward_pre_hook(lambda module, given: self.prepare())

    def prepare(self):
        self.made = 2 * self.head.second

    def forward(self, images):
        carried = self.stem(images.flatten(1)[:, :16]).tanh()
        return self.head(carried) + carried @ self.made.t()


def traps():
    """{model and rules: distance from DDP}, each tensor a message: what is shared, and what hooks see."""
    found = {}
    for kind in (Summed, Joined, Prepared):
        workload = workload_of(model_of(kind))
        plan = contiguous_plan(workload, range(1, len(workload.gradients) + 1))
        reference, _ = train(kind, sgd, None, steps=SHORT)
        for rule in ("plain", "split", "overlap", "all"):
            found[f"{kind.__name__} {rule}"] = apart(
                train(kind, sgd, plan.under(RULES[rule]), steps=SHORT)[0], reference
            )
    return found


def between():
    """{what is done between step and forward, with updates put off: whether it sees the update, or goes on as DDP}"""
    found, reference = {}, train(Small, adamw, None, steps=2)[0]
    for what in ("part of the state", "loading a part", "inference mode", "keeping nothing"):
        model = model_of()
        optimizer = adamw(model)
        executor = execute(model, optimizer, families(workload_of(model))["merged"].under(RULES["all"]), limit=60)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
        for step in range(2):
            loss_of(model, step).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if what == "inference mode" and step == 0:
                with torch.inference_mode():
                    loss_of(model, 50)
        if what == "part of the state":
            tensors = [*zip(model.head.state_dict().values(), reference[-2:], strict=True)]
            found[what] = all(torch.equal(one, other) for one, other in tensors)
        if what == "loading a part":
            model.head.load_state_dict({name: torch.ones_like(tensor) for name, tensor in reference_of(model).items()})
            executor.synchronize()
            found[what] = bool((model.head.bias == 1).all())
        executor.close()
        if what == "inference mode":
            found[what] = apart(model.parameters(), reference) == 0
        if what == "keeping nothing":
            found[what] = all(tensor.grad is None for tensor in model.parameters())
    return found


def reference_of(model):
    """The tensors of the head."""
    return dict(model.head.named_parameters())


def changed():
    """Messages if other parameters are to be trained than before, or these by two at once."""
    said = {}
    for what in ("unfrozen", "assigned", "twice", "wrapped", "no plan"):
        model = model_of()
        optimizer, plan = sgd(model), families(workload_of(model))["wfbp"]
        keep = DistributedDataParallel(model) if what == "wrapped" else None
        try:
            if what == "no plan":
                plan = "plan.json"
            executor = execute(model, optimizer, plan, limit=60)
            if what == "twice":
                execute(model, optimizer, plan, limit=60)
            if what == "unfrozen":
                model.frozen.requires_grad_(True)
            if what == "assigned":
                model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
            loss_of(model, 0).backward()
            executor.close()
        except OsfError as error:
            said[what] = f"{type(error).__name__}: {error}"
        del keep
    return said


def checkpoint():
    """State of model and optimizer after a few steps with forward overlap, unasked for, and resumed from it."""
    reference, resting = train(Small, adamw, None, steps=SHORT)
    model = model_of()
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    plan = families(workload_of(model))["merged"].under(RULES["all"])
    executor = execute(model, optimizer, plan, limit=60)
    for step in range(SHORT):
        if step == 3:
            saved = {name: value.clone() for name, value in model.state_dict().items()}, optimizer.state_dict()
            kept = BytesIO()
            torch.save(saved, kept)
            kept.seek(0)
            executor.close()
            model, later = Small(), scheduler.state_dict()
            optimizer = adamw(model)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
            executor = execute(model, optimizer, plan, limit=60)
            loaded = torch.load(kept, weights_only=True)
            model.load_state_dict(loaded[0])
            optimizer.load_state_dict(loaded[1])
            scheduler.load_state_dict(later)
        loss_of(model, step).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    state, other = optimizer.state_dict(), resting.state_dict()
    same = [
        torch.equal(value, other["state"][number][key])
        for number, row in state["state"].items()
        for key, value in row.items()
    ]
    groups = state["param_groups"] == other["param_groups"]
    return {"parameters": apart(model.parameters(), reference), "state": all(same) and len(same) > 3, "groups": groups}


class Branches(nn.Module):
    """Two branches whose gradients become ready in another order on each rank."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs):
        one, other = (self.left, self.right) if dist.get_rank() else (self.right, self.left)
        return other(one(inputs).tanh())


def order():
    """Messages that this rank handed to the network, and the order in which its gradients came."""
    found = {}
    for rule, rules in RULES.items():
        model, came, sent = model_of(Branches), [], []
        for name, tensor in model.named_parameters():
            tensor.register_post_accumulate_grad_hook(partial(lambda came, name, _: came.append(name), came, name))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sizes = [(name, tensor.numel() * 4) for name, tensor in model.named_parameters()]
        plan = Plan("small", tuple(Bucket((Block(name, 0, size),)) for name, size in sizes)).under(rules)
        executor = execute(model, optimizer, plan, limit=60)
        for kind in ("all_reduce", "reduce_scatter", "all_gather"):
            setattr(executor.channels, kind, partial(recorded, getattr(executor.channels, kind), kind, sent))
        for _ in range(2):
            model(torch.randn(3, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        executor.close()
        found[rule] = {"came": came, "sent": sent}
    return found


def recorded(call, kind, sent, *tensors):
    """A collective that is written down."""
    sent.append(f"{kind} of {max(tensor.numel() for tensor in tensors)}")
    return call(*tensors)


def told(work):
    """The error that ``work`` raises, in words."""
    try:
        work()
    except (OsfError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def refusals():
    """Messages of execute() on plans and models that do not go together; ranks differ in some."""
    model = model_of()
    workload = workload_of(model)
    plan = families(workload)["merged"]
    rank = dist.get_rank()
    short = Plan("small", plan.buckets[1:])
    inside = Plan("small", tuple(Bucket((replace_size(b, 6), rest_of(b, 6))) for b in one_each(workload)))
    other = {
        "other plans": plan if rank else families(workload)["wfbp"],
        "other rules": plan.under(RULES["k4" if rank else "plain"]),
        "wrong on one": short if rank else plan,
        "short": short,
        "inside": inside,
        "credit": Plan("small", plan.buckets, credit=5),
        "clock": Plan("small", tuple(Bucket(bucket.blocks, 1.0) for bucket in plan.buckets)),
    }
    found = {what: told(lambda plan=plan: execute(model, sgd(model), plan)) for what, plan in other.items()}
    overlap = plan.under(RULES["overlap"])
    found["optimizer"] = told(lambda: execute(model, torch.optim.Adagrad(model.parameters()), overlap))
    found["partly"] = told(lambda: execute(model, torch.optim.SGD(model.head.parameters()), overlap))
    found["wrapped"] = told(lambda: execute(DistributedDataParallel(model), sgd(model), plan))
    found["unused"] = told(lambda: execute(model, sgd(model), plan, unused=bool(rank)))
    wide = model_of(Branches) if rank == 0 else nn.ModuleDict({"left": nn.Linear(8, 8), "right": nn.Linear(8, 8)})
    if rank:
        wide.left.weight = nn.Parameter(torch.zeros(4, 16))
    sizes = [(name, tensor.numel() * 4) for name, tensor in wide.named_parameters()]
    same = Plan("small", tuple(Bucket((Block(name, 0, size),)) for name, size in sizes))
    found["models"] = told(lambda: execute(wide, None, same))
    return found


def one_each(workload):
    """A block for each tensor."""
    return [Block(*row) for row in zip(workload.gradients.names, [0] * 99, workload.gradients.sizes, strict=False)]


def replace_size(block, size):
    """Its first bytes."""
    return Block(block.layer, 0, size)


def rest_of(block, size):
    """All but its first bytes."""
    return Block(block.layer, size, block.bytes - size)


def misuse():
    """Messages to loops that go wrong; the same on every rank."""
    found = {}
    for rule in ("plain", "overlap", "all"):
        for what in MISUSES:
            model = model_of()
            optimizer = sgd(model)
            plan = families(workload_of(model))["merged"].under(RULES[rule])
            execute(model, optimizer, plan, limit=60)
            found[f"{what.__name__} {rule}"] = told(partial(what, model, optimizer))
    return found


def twice(model, optimizer):
    """A second backward before step."""
    loss_of(model, 0).backward()
    loss_of(model, 1).backward()


def early(model, optimizer):
    """Clipping without synchronize()."""
    loss_of(model, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def looked_at(model, optimizer):
    """Gradients read without synchronize()."""
    loss_of(model, 0).backward()
    return model.head.weight.grad.sum()


def kept(model, optimizer):
    """Train without any zero_grad."""
    for number in range(2):
        loss_of(model, number).backward()
        optimizer.step()


def stepped_twice(model, optimizer):
    """Two steps for one backward."""
    loss_of(model, 0).backward()
    optimizer.step()
    optimizer.step()


def zeroed_in_place(model, optimizer):
    """Zeros written into gradients that are under way."""
    loss_of(model, 0).backward()
    optimizer.zero_grad(set_to_none=False)


def zeroed(model, optimizer):
    """Gradients taken away between backward and step."""
    loss_of(model, 0).backward()
    optimizer.zero_grad()
    optimizer.step()


def lacking(model, optimizer):
    """Parameters that the loss does not depend on."""
    model.body(torch.randn(2, 3, 16)).sum().backward()


def stale(model, optimizer):
    """A backward after step of a forward before it, which autograd notices."""
    one, other = loss_of(model, 0), loss_of(model, 1)
    one.backward()
    optimizer.step()
    optimizer.zero_grad()
    other.backward()


MISUSES = (twice, looked_at, early, kept, stepped_twice, zeroed, zeroed_in_place, lacking, stale)


class Failing(torch.autograd.Function):
    """Raises in backward where it is told to."""

    @staticmethod
    def forward(ctx, carried, fails):
        ctx.fails = fails
        return carried.clone()

    @staticmethod
    def backward(ctx, carried):
        if ctx.fails == "raise":
            raise ValueError("no gradient today")
        if ctx.fails == "exit":
            os._exit(7)
        if ctx.fails == "hang":
            dist.barrier()
        return carried, None


class Unlucky(Small):
    """Fails in the middle of backward."""

    fails = ""

    def forward(self, images):
        tokens = self.frozen(self.stem(images).flatten(2).transpose(1, 2))
        return self.head(self.second(self.first(Failing.apply(self.body(tokens), self.fails)).relu()).mean(1))


def faults():
    """{fault and rules: what this rank is told of what rank 1 does in its second step, and what when it goes on}"""
    found = {}
    for what, rules in FAULTS.items():
        for rule in rules:
            model = model_of(Unlucky)
            optimizer = sgd(model)
            plan = families(workload_of(model))["merged"].under(RULES[rule])
            executor = execute(model, optimizer, plan, limit=3 if what == "hang" else 3600)
            found[f"{what} {rule}"] = told(partial(unlucky, model, optimizer, what))
            if what != "hang" or dist.get_rank() != 1:  # which waits here in its backward
                dist.barrier()
            found[f"{what} {rule} again"] = told(lambda model=model: loss_of(model, 9).backward())
            found[f"{what} {rule} closed"] = told(executor.close)
    return found


FAULTS = {
    "raise": ("plain", "all"),
    "hang": ("plain", "all"),
    "lack": ("plain", "all"),
    "zero": ("all",),
    "twice": ("all",),
    "stepped": ("all",),
}


def unlucky(model, optimizer, what):
    """Three steps, in the second of which rank 1 does something that is wrong."""
    for number in range(3):
        wrong = what if number == 1 and dist.get_rank() == 1 else ""
        model.fails = wrong
        loss = loss_of(model, number) if wrong != "lack" else model.body(torch.randn(2, 3, 16)).sum()
        loss.backward()
        if wrong == "twice":
            loss_of(model, number).backward()
        if wrong == "zero":
            optimizer.zero_grad()
        optimizer.step()
        if wrong == "stepped":
            optimizer.step()
        optimizer.zero_grad()


def lost(what, rule):
    """Messages if rank 1 ends in backward, at once or with an exception that nothing catches.

    One of some 300 times gloo waits to the limit, for a send to the rank that is gone.
    """
    model = model_of(Unlucky)
    optimizer = sgd(model)
    execute(model, optimizer, families(workload_of(model))["merged"].under(RULES[rule]), limit=20)
    if dist.get_rank() == 1:
        unlucky(model, optimizer, what)
    return [told(partial(unlucky, model, optimizer, what)), told(lambda: loss_of(model, 9).backward())]


SCENARIOS = {
    "each": each,
    "fifty": fifty,
    "few": few,
    "ways": ways,
    "unused": unused,
    "untouched": untouched,
    "growth": growth,
    "measure": measure,
    "dtypes": dtypes,
    "traps": traps,
    "between": between,
    "changed": changed,
    "checkpoint": checkpoint,
    "deferral": deferral,
    "order": order,
    "refusals": refusals,
    "misuse": misuse,
    "faults": faults,
    "exit": partial(lost, "exit", "all"),
    "uncaught": partial(lost, "raise", "plain"),
}


def main(scenarios, *names):
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for name in names:
        print(json.dumps({name: scenarios[name]()}), flush=True)
    with suppress(RuntimeError):  # where a rank was lost
        dist.barrier()  # the first rank holds the store, which others may still need to form groups
    os._exit(0)  # groups that were broken on purpose may hang when they are torn down


if __name__ == "__main__":
    main(SCENARIOS, *sys.argv[1:])
