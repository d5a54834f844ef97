"""What ranks do in the tests of sparse buckets: ``python -m tests.live.sparsely SCENARIO...``."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from osfmodel.plan import contiguous_plan
from osfmodel.runtime.executor import execute
from tests.live.executing import (
    SHORT,
    Small,
    adamw,
    apart,
    families,
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


def refused():
    """What does not go together with sparse buckets."""
    model = model_of(doubled)
    return {"unused": told(lambda: execute(model, sgd(model), plans()["merged 0.01"], unused=True))}


SCENARIOS = {
    "feedback": feedback,
    "without_feedback": without_feedback,
    "whole": whole,
    "conserved": conserved,
    "sizes": sizes,
    "loops": loops,
    "nonfinite": nonfinite,
    "refused": refused,
}

if __name__ == "__main__":
    main(SCENARIOS, *sys.argv[1:])
