"""Ranks in the tests of sparse buckets: ``python -m tests.live.sparsely SCENARIO...``."""

from __future__ import annotations

import sys
import time
import weakref
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, partialmethod
from io import BytesIO

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from osfmodel.entities.plan import contiguous_plan
from osfmodel.runtime.executor import execute, saving
from osfmodel.runtime.executor.messages import Message, SparseMessage
from tests.live.executing import (
    SHORT,
    Small,
    Way,
    adamw,
    apart,
    families,
    groups_of,
    loss_at,
    loss_of,
    main,
    model_of,
    sgd,
    told,
    train,
    workload_of,
)

MOST = 12


def doubled():
    """In float64, without biases whose gradients are nothing but rounding."""
    return Small(bias=False).double()


def sparse(plan, density, every=1):
    """The plan with that density in every so many buckets, the first among them."""
    buckets = [
        replace(bucket, density=None if number % every else density) for number, bucket in enumerate(plan.buckets)
    ]
    return replace(plan, buckets=tuple(buckets))


def plans(kind=doubled):
    """{name: plan}, with all or half of its buckets sparse, one or two in flight."""
    every = families(workload_of(model_of(kind)))
    return {
        "wfbp 0.05": sparse(every["wfbp"], 0.05),
        "merged 0.01": sparse(every["merged"], 0.01),
        "mingled 0.2, half": sparse(every["mingled"], 0.2, 2),
        "merged 0.1, two channels": sparse(replace(every["merged"], channels=2), 0.1),
    }


def oracle(kind, optimizer_of, plan, steps):
    """Parameters after ``steps`` of error feedback with top-k, all ranks in this process, and chosen by numpy."""
    world = dist.get_world_size()
    model = model_of(kind)
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    density = {block.layer: bucket.density for bucket in plan.buckets for block in bucket.blocks}
    unsent = [dict.fromkeys(density, 0.0) for _ in range(world)]
    for step in range(steps):
        means = dict.fromkeys(density, 0.0)
        for rank in range(world):
            optimizer.zero_grad()
            loss_at(model, step * world + rank).backward()
            for name, tensor in model.named_parameters():
                if tensor.requires_grad:
                    given = unsent[rank][name] + tensor.grad.numpy().ravel() / world
                    sent = given if density[name] is None else largest(given, density[name])
                    means[name] = means[name] + sent
                    unsent[rank][name] = given - sent
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                tensor.grad = torch.from_numpy(means[name].reshape(tensor.shape))
        optimizer.step()
        scheduler.step()
    return list(model.parameters())


def largest(values, density):
    """The values with all but the largest magnitudes zero."""
    count = int(np.ceil(density * values.size))
    kept = np.argsort(-np.abs(values), kind="stable")[:count]
    found = np.zeros_like(values)
    found[kept] = values[kept]
    return found


def feedback():
    """{plan and optimizer: distance from the oracle}, in float64."""
    return {
        f"{name}, {how.__name__}": apart(train(doubled, how, plan, steps=MOST)[0], oracle(doubled, how, plan, MOST))
        for how in (sgd, adamw)
        for name, plan in plans().items()
    }


def without_feedback():
    """An oracle shown failing: the distance where what was not sent is forgotten."""
    plan = plans()["wfbp 0.05"]
    model = model_of(doubled)
    optimizer = sgd(model)
    executor = execute(model, optimizer, plan, limit=60)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    for step in range(MOST):
        loss_of(model, step).backward()
        for gradient in executor.gradients:
            gradient.unsent.kept.zero_()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    executor.close()
    return apart(model.parameters(), oracle(doubled, sgd, plan, MOST))


def whole():
    """{optimizer: distance from dense training} where the density is 1."""
    plan = families(workload_of(model_of(doubled)))["merged"]
    return {
        how.__name__: apart(
            train(doubled, how, sparse(plan, 1), steps=SHORT)[0], train(doubled, how, plan, steps=SHORT)[0]
        )
        for how in (sgd, adamw)
    }


def conserved():
    """The greatest difference of any element between all gradients so far and what was sent, or still is not."""
    model = model_of(doubled)
    optimizer = sgd(model)
    given, sent = {}, {}
    for tensor in model.parameters():
        if tensor.requires_grad:
            given[tensor] = sent[tensor] = 0.0
            tensor.register_hook(partial(count, given, tensor))
    executor = execute(model, optimizer, plans()["merged 0.01"], limit=60)
    for step in range(MOST):
        loss_of(model, step).backward()
        sent = {tensor: sent[tensor] + tensor.grad for tensor in given}
        optimizer.step()
        optimizer.zero_grad()
    apart = []
    for gradient in executor.gradients:
        left = gradient.unsent.kept - given[gradient.parameter] / dist.get_world_size()
        dist.all_reduce(left)
        apart.append(float((sent[gradient.parameter] + left).abs().max()))
    executor.close()
    return {"apart": max(apart), "sent": max(float(tensor.abs().max()) for tensor in sent.values())}


def count(given, tensor, gradient):
    """Autograd has a gradient."""
    given[tensor] = given[tensor] + gradient


class Sizes(nn.Module):
    """Tensors of one element and of a few, in a type, one of them not in the order of its rows."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=dtype))
        self.few = nn.Parameter(torch.arange(3.0).to(dtype))
        self.turned = nn.Parameter(torch.randn(4, 3).to(dtype).t())

    def forward(self, images):
        return images.flatten(1)[:, :4] @ (self.one * self.turned * self.few[:, None]).tanh().t()


def sizes():
    """{type: distance from dense}, with all that fits sent, and how many entries arrive where hardly any is sent."""
    found = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        kind = partial(Sizes, dtype)
        plan = contiguous_plan(workload_of(model_of(kind)), [3])
        whole = [sums(kind, chosen)[0].tolist() for chosen in (plan, sparse(plan, 1.0))]
        found[str(dtype)] = {"whole": whole, "few": sums(kind, sparse(plan, 1e-9))[1]}
    return found


def sums(kind, plan):
    """The gradient of a backward in one, and how many of each tensor are not zero."""
    model = model_of(kind)
    executor = execute(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, limit=60)
    images = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).to(model.one.dtype)
    model(images).square().sum().backward()
    executor.close()
    found = [tensor.grad for tensor in model.parameters()]
    assert all(tensor.grad.stride() == tensor.stride() for tensor in model.parameters())
    return torch.cat([tensor.flatten() for tensor in found]).double(), [int(tensor.count_nonzero()) for tensor in found]


def loops():
    """{way: distance from the oracle} of loops that add gradients up before they are sent, under no_sync or by hand."""
    plan = plans()["merged 0.1, two channels"]
    found = {}
    for quiet in (True, False):
        model = model_of(doubled)
        optimizer = sgd(model)
        executor = execute(model, optimizer, sparse(plan, 1), limit=60)
        other = model_of(doubled)
        dense = execute(other, sgd(other), families(workload_of(other))["merged"], limit=60)
        for trained, runs in ((model, executor), (other, dense)):
            if quiet:
                with runs.no_sync():
                    loss_of(trained, 0).backward()
            else:
                loss_of(trained, 0).backward()
            loss_of(trained, 1).backward()
            runs.close()
        grads = [[tensor.grad for tensor in one.parameters() if tensor.requires_grad] for one in (model, other)]
        found["no_sync" if quiet else "aloud"] = apart(*grads)
    return found


def nonfinite():
    """{what: what is told, and then} where the gradient of one rank is not a number, or infinite."""
    found = {}
    for what in ("nan", "inf"):
        for name, plan in plans().items():
            if "half" in name:  # there it travels densely, as it may
                continue
            model = model_of(doubled)
            execute(model, sgd(model), plan, limit=60)
            if dist.get_rank() == 1:
                model.first.weight.register_hook(partial(spoilt, float(what)))
            found[f"{what}, {name}"] = [
                told(lambda model=model: loss_of(model, 0).backward()),
                told(lambda model=model: loss_of(model, 1).backward()),
            ]
    return found


def spoilt(value, gradient):
    """A gradient with one element that is no number."""
    return gradient.index_fill(0, torch.tensor([3]), value)


def mirrored():
    """{type: {plan and optimizer: distance of training with mirrors from that with residuals}}, rates changing."""
    found = {}
    for label, kind in {"float64": doubled, "float32": partial(Small, bias=False)}.items():
        found[label] = {}
        for name, plan in plans(kind).items():
            for optimizer, how in {"momentum": sgd, "without": plain_sgd}.items():
                one = train(kind, how, plan, steps=MOST)[0]
                other = train(kind, how, replace(plan, mirror=True), steps=MOST)[0]
                found[label][f"{name}, {optimizer}"] = apart(other, one)
    return found


def plain_sgd(model):
    """Without momentum, with Nesterov's in the one group, and weight decay in the other."""
    first, second = groups_of(model)
    return torch.optim.SGD([{**first, "momentum": 0.5, "nesterov": True}, second], lr=0.05)


def stiff():
    """An oracle shown failing: the distance of mirrors from residuals where they do not follow a change of the rate."""
    plan = plans()["merged 0.01"]
    reference = train(doubled, sgd, plan, steps=MOST)[0]
    model, scheduler, executor = fresh(replace(plan, mirror=True))
    for step in range(MOST):
        for gradient in executor.gradients:
            gradient.unsent.rate *= 1 if step % 3 or not step else 0.7
        loss_of(model, step).backward()
        scheduler.optimizer.step()
        scheduler.step()
        scheduler.optimizer.zero_grad()
    executor.close()
    return apart(model.parameters(), reference)


def released():
    """{plan, optimizer and way: distance of training with release from that without}; optimizers by turns."""
    every = families(workload_of(model_of()))
    few = plans(Small)
    chosen = {name: every[name] for name in ("wfbp", "merged", "mingled", "cut")}
    chosen["cut, two channels"] = replace(every["cut"], channels=2)
    chosen |= {name: few[name] for name in ("wfbp 0.05", "mingled 0.2, half", "merged 0.1, two channels")}
    found = {}
    for k, (name, plan) in enumerate(chosen.items()):
        ways = {"plain": Way(), "accumulated": Way(2), "closed": Way(closed=True)}
        for place, (label, way) in enumerate(ways.items()):
            if label == "plain" or k % 3 == len(label) % 3:
                how = (sgd, adamw)[(k + place) % 2]
                one = train(Small, how, plan, way, SHORT)[0]
                other = train(Small, how, replace(plan, release=True), way, SHORT)[0]
                found[f"{name}, {how.__name__}, {label}"] = apart(other, one)
    mirror = replace(plans()["mingled 0.2, half"], mirror=True)
    for label, way in {"plain": Way(), "closed": Way(closed=True)}.items():
        one = train(doubled, sgd, mirror, way, MOST)[0]
        found[f"mirror, {label}"] = apart(train(doubled, sgd, replace(mirror, release=True), way, MOST)[0], one)
    return found


def memory():
    """{plan: how many of an iteration's gradients and messages there were, and how many live on after backward}."""
    every = families(workload_of(model_of(Wide)))
    dense, cut = every["merged"], every["cut"]
    chosen = {"dense": dense, "cut": cut, "sparse": sparse(dense, 0.01), "half": sparse(dense, 0.01, 2)}
    chosen["mirror"] = replace(chosen["sparse"], mirror=True)
    return {
        f"{name}{', released' if release else ''}": living(replace(plan, release=release))
        for name, plan in chosen.items()
        for release in (False, True)
    }


def living(plan):
    """(tensors that held gradients or messages in a backward, those of them that something still holds after it)."""
    model, seen = model_of(Wide), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = execute(model, optimizer, plan, limit=60)
    before = {kind: (kind.take, kind.start, kind.land) for kind in (Message, SparseMessage)}
    for kind, calls in before.items():
        kind.take, kind.start, kind.land = (partialmethod(noting, call, seen) for call in calls)
    try:
        model(torch.randn(2, 64)).square().sum().backward()
    finally:
        for kind, calls in before.items():
            kind.take, kind.start, kind.land = calls
    tensors = {id(tensor()): tensor for tensor in seen if tensor() is not None}
    deadline = time.monotonic() + 10
    while plan.release and any(tensor() is not None for tensor in seen) and time.monotonic() < deadline:
        time.sleep(0.01)  # gloo's threads let go of what has arrived a moment later
    optimizer.step()
    assert not plan.release or all(tensor.grad is None for tensor in model.parameters())
    executor.close()
    return len(seen), len({key for key, tensor in tensors.items() if tensor() is not None})


def noting(message, call, seen, *given):
    """``call``, and weak references to the tensors that ``message`` and its gradients hold then."""
    call(message, *given)
    held = [message.buffer, getattr(message, "part", None), *(piece.gradient.value for piece in message.pieces)]
    seen += [weakref.ref(tensor) for tensor in held if tensor is not None]


class Wide(nn.Module):
    """A few layers, of which each has many more parameters than there are activations."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(5)))

    def forward(self, images):
        return self.layers(images)


class Normal(nn.Module):
    """Blocks of convolution, normalisation and dropout: what a second forward would change."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(self.block(3 if k == 0 else 8) for k in range(3)))
        self.head = nn.Linear(8, 5)
        self.calls = 0
        self.blocks[1].register_forward_hook(self.called)
        self.blocks[1][0].register_forward_hook(self.called)

    def called(self, *_):
        self.calls += 1

    @staticmethod
    def block(channels):
        kept = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        return nn.Sequential(nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), kept, nn.ReLU(), nn.Dropout(0.3))

    def forward(self, images):
        return self.head(self.blocks(images).mean((2, 3)))


def recomputed():
    """{what: whether parameters, gradients and buffers are those of training that keeps all activations}"""
    plan = families(workload_of(model_of(Normal)))["merged"]
    inner = ("blocks.0", "blocks.1.1")
    cases = {
        "blocks": replace(plan, recompute=("blocks.0", "blocks.1", "blocks.2")),
        "all": replace(plan, recompute=("blocks", "head")),
        "inner": replace(plan, recompute=inner),
        "overlap": replace(plan, recompute=inner, forward_overlap=True, strategy="split"),
        "released": replace(plan, recompute=("blocks.1",), release=True),
        "sparse": replace(sparse(plan, 1), recompute=("blocks.1",), release=True, mirror=False),
    }
    reference, calls = normalised(plan)
    found = {name: same(normalised(case)[0], reference) for name, case in cases.items()}
    found["calls"] = [calls, normalised(cases["blocks"])[1]]
    kept, saving._without_statistics = saving._without_statistics, lambda module: nullcontext()
    try:
        found["twice"] = same(normalised(cases["blocks"])[0], reference)
    finally:
        saving._without_statistics = kept
    return found


def same(one, other):
    """Whether lists of tensors are, bit for bit."""
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def normalised(plan):
    """Parameters and buffers after a few steps, of training and of an evaluation in between; and the calls counted."""
    model = model_of(Normal)
    before = dict(vars(model.blocks[1]))
    optimizer = adamw(model)
    executor = execute(model, optimizer, plan, limit=60)
    torch.manual_seed(1000 + dist.get_rank())
    for step in range(SHORT):
        loss_of(model, step).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2:
            model.eval()
            with torch.no_grad():
                loss_of(model, 50)
            model.train()
    executor.close()
    assert dict(vars(model.blocks[1])) == before
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())], model.calls


def resumed():
    """{form: distance of training that was broken off, saved and resumed from training that was not}."""
    found = {}
    for form, mirror in {"residual": False, "mirror": True}.items():
        for order in (True, False):
            plan = replace(plans()["mingled 0.2, half"], mirror=mirror)
            reference, _ = train(doubled, sgd, plan, steps=SHORT)
            model, scheduler, executor = fresh(plan)
            for step in range(SHORT):
                if step == 3:
                    saved = BytesIO()
                    torch.save([*(one.state_dict() for one in (*scheduled(scheduler), model, executor))], saved)
                    executor.close()
                    saved.seek(0)
                    *states, weights, unsent = torch.load(saved, weights_only=True)
                    model, scheduler, executor = fresh(plan)
                    for one, state in zip(scheduled(scheduler), states, strict=True):
                        one.load_state_dict(state)
                    pairs = [(model, weights), (executor, unsent)]
                    for one, state in pairs if order else reversed(pairs):
                        one.load_state_dict(state)
                loss_of(model, step).backward()
                scheduler.optimizer.step()
                scheduler.step()
                scheduler.optimizer.zero_grad()
            executor.close()
            found[f"{form}, model {'first' if order else 'last'}"] = apart(model.parameters(), reference)
    return found


def fresh(plan):
    """A new start."""
    model = model_of(doubled)
    optimizer = sgd(model)
    executor = execute(model, optimizer, plan, limit=60)
    return model, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7), executor


def scheduled(scheduler):
    """The objects to save for it."""
    return scheduler.optimizer, scheduler


def states():
    """Messages if a state of another run is loaded, and the state without sparse buckets."""
    every = plans()
    executors = {}
    for name, plan in {**every, "mirror": replace(every["merged 0.01"], mirror=True)}.items():
        executors[name] = fresh(plan)[2]
    dense = fresh(families(workload_of(model_of(doubled)))["merged"])[2]
    state = executors["merged 0.01"].state_dict()
    one = executors["merged 0.01"]
    named = {**state, "unsent": {**state["unsent"], "head.bias": torch.zeros(4, dtype=torch.float64)}}
    before = [gradient.unsent.kept.clone() for gradient in one.gradients]
    found = {
        "dense": dense.state_dict(),
        "empty": told(lambda: dense.load_state_dict({})),
        "form": told(lambda: executors["mirror"].load_state_dict(state)),
        "rank": told(lambda: one.load_state_dict({**state, "rank": 1 - dist.get_rank()})),
        "world": told(lambda: one.load_state_dict({**state, "world": 3})),
        "half": told(lambda: executors["mingled 0.2, half"].load_state_dict(state)),
        "shape": told(lambda: one.load_state_dict(named)),
        "none": told(lambda: one.load_state_dict({})),
        "own": told(lambda: one.load_state_dict(state)),
    }
    assert same([gradient.unsent.kept for gradient in one.gradients], before)
    return found


def refused():
    """Messages of execute() on plans that the model or the optimizer does not suit."""
    model = model_of(doubled)
    plan = plans()["merged 0.01"]
    dense = families(workload_of(model))["merged"]
    release, mirror = replace(dense, release=True), replace(plan, mirror=True)
    still, coarse = (partial(torch.optim.SGD, lr=0.0), model_of(lambda: Small(bias=False).bfloat16()))
    cases = {
        "sparse unused": lambda: execute(model, sgd(model), plan, unused=True),
        "release unused": lambda: execute(model, sgd(model), release, unused=True),
        "release split": lambda: execute(model, sgd(model), replace(release, strategy="split")),
        "release optimizer": lambda: execute(model, torch.optim.Adagrad(model.parameters()), release),
        "release none": lambda: execute(model, None, release),
        "release partly": lambda: execute(model, torch.optim.SGD(model.head.parameters()), release),
        "mirror optimizer": lambda: execute(model, adamw(model), mirror),
        "mirror rate": lambda: execute(model, still(model.parameters()), mirror),
        "mirror partly": lambda: execute(model, torch.optim.SGD(model.head.parameters(), lr=0.1), mirror),
        "mirror type": lambda: execute(coarse, sgd(coarse), replace(plans(lambda: coarse)["merged 0.01"], mirror=True)),
        "recompute name": lambda: execute(model, sgd(model), replace(dense, recompute=("body", "nobody"))),
        "recompute root": lambda: execute(model, sgd(model), replace(dense, recompute=("",))),
        "recompute nested": lambda: execute(model, sgd(model), replace(dense, recompute=("body", "body.linear1"))),
        "recompute twice": lambda: execute(model, sgd(model), replace(dense, recompute=("body", "body"))),
    }
    return {what: told(case) for what, case in cases.items()}


def wrong():
    """Messages to loops that go wrong, with release and with mirrors."""
    every = families(workload_of(model_of(doubled)))
    release, mirror = replace(every["merged"], release=True), replace(sparse(every["merged"], 0.1), mirror=True)
    found = {}
    for plan, cases in ((release, RELEASED), (mirror, MIRRORED)):
        for what in cases:
            model = model_of(doubled)
            optimizer = sgd(model)
            executor = execute(model, optimizer, plan, limit=60)
            found[what.__name__] = told(partial(what, model, optimizer, executor))
    counting = model_of(Counting)
    plan = replace(contiguous_plan(workload_of(counting), [4]), recompute=("inner",))
    execute(counting, sgd(counting), plan, limit=60)
    found["counting"] = told(lambda: counting(torch.randn(2, 4)))
    return found


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        self.inner.register_buffer("calls", torch.zeros(()))
        self.inner.register_forward_pre_hook(lambda *_: None)
        whole = self.inner.forward
        self.inner.forward = lambda given: whole(given + 0 * self.inner.calls.add_(1).detach().clone())

    def forward(self, given):
        return self.outer(self.inner(given))


def clipped(model, optimizer, executor):
    """Clipping what has been given back."""
    loss_of(model, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def looked_at(model, optimizer, executor):
    """Gradients read."""
    loss_of(model, 0).backward()
    return model.head.weight.grad.sum()


def unscaled(model, optimizer, executor):
    """A scaler as for AMP."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(loss_of(model, 0)).backward()
    scaler.step(optimizer)


def twice(model, optimizer, executor):
    """A second backward before step."""
    loss_of(model, 0).backward()
    loss_of(model, 1).backward()


def zeroed(model, optimizer, executor):
    """zero_grad in place of step."""
    loss_of(model, 0).backward()
    optimizer.zero_grad()
    loss_of(model, 1).backward()


def alone(model, optimizer, executor):
    """A step after a backward that was not sent."""
    with executor.no_sync():
        loss_of(model, 0).backward()
    optimizer.step()


def regrouped(model, optimizer, executor):
    """A parameter taken out of the optimizer."""
    optimizer.param_groups[0]["params"].pop()
    loss_of(model, 0).backward()


def stopped(model, optimizer, executor):
    """A learning rate that becomes 0."""
    for number in range(2):
        loss_of(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.param_groups[1]["lr"] = 0.0


def clamped(model, optimizer, executor):
    """Weights changed by hand."""
    for number in range(2):
        loss_of(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.head.weight.clamp_(-0.1, 0.1)


def loaded(model, optimizer, executor):
    """Weights loaded, which mirrors follow."""
    for number in range(2):
        loss_of(model, number).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()})
        model.head.load_state_dict(model.head.state_dict())
    for gradient in executor.gradients:
        gradient.unsent.join()
        unsent = (gradient.parameter - gradient.unsent.kept).abs().max() / gradient.unsent.rate
        assert unsent < 10, (gradient.name, unsent)


RELEASED = (clipped, looked_at, unscaled, twice, zeroed, alone, regrouped)
MIRRORED = (stopped, clamped, loaded)

SCENARIOS = {
    "feedback": feedback,
    "without_feedback": without_feedback,
    "whole": whole,
    "conserved": conserved,
    "sizes": sizes,
    "loops": loops,
    "nonfinite": nonfinite,
    "mirrored": mirrored,
    "stiff": stiff,
    "released": released,
    "memory": memory,
    "recomputed": recomputed,
    "resumed": resumed,
    "states": states,
    "refused": refused,
    "wrong": wrong,
}

if __name__ == "__main__":
    main(SCENARIOS, *sys.argv[1:])
