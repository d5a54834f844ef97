"""Loops that few write, and models that few have, as cases of tests.live.unusual."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from tests.live.unusual import EAGER, WAITING, Case, Layers, of_loss, plainly, settled, weight


class Tied(Layers):
    """A weight that is used transposed too, and one that stands in a list twice."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 6)
        shift = nn.Parameter(torch.randn(12))
        self.shifts = nn.ParameterList([shift, nn.Parameter(torch.randn(12)), shift])

    def forward(self, inputs):
        carried = self.first(inputs)
        for shift in self.shifts:
            carried = self.middle(carried + shift).tanh()
        return self.last(nn.functional.linear(carried, self.first.weight.t()))


class Images(nn.Module):
    """Convolutions in channels_last, normalised, with dropout of its own seeds."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(2, 6, 2), nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs):
        images = inputs.view(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
        return self.head(self.norm(self.stem(images)).relu().mean((2, 3)))


class Parametrized(Layers):
    """Weights that are made of others before each forward: by norms, one of which has buffers that forward changes."""

    def __init__(self):
        super().__init__()
        parametrizations.weight_norm(self.first)
        parametrizations.spectral_norm(self.middle)
        parametrizations.orthogonal(self.last, orthogonal_map="cayley")


class Lazy(nn.Sequential):
    """Layers that have their shape from a forward."""

    def __init__(self):
        super().__init__(nn.LazyLinear(12), nn.Tanh(), nn.LazyLinear(6), nn.LazyBatchNorm1d())
        self(torch.randn(4, 8))


class OneMemory(Layers):
    """Parameters that are parts of one tensor, and a buffer that shows one of them."""

    def __init__(self):
        super().__init__()
        flat = torch.randn(12 * 8 + 12 * 12) / 4
        self.first.weight = nn.Parameter(flat[:96].view(12, 8))
        self.middle.weight = nn.Parameter(flat[96:].view(12, 12).t())
        self.register_buffer("shown", flat[:96:2])

    def forward(self, inputs):
        return super().forward(inputs) * (1 + self.shown.mean().detach().clone())


class Replaced(Layers):
    """A buffer that each forward puts a new tensor in the place of."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, inputs):
        carried = self.first(inputs).tanh()
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * carried.detach().mean(0)
        return self.last(self.middle(carried - self.mean).tanh())


class Recurrent(nn.Module):
    """An LSTM, and a layer that is called at each of its steps."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(4, 6, num_layers=2, batch_first=True), nn.Linear(6, 4)

    def forward(self, inputs):
        states = self.cells(inputs.view(-1, 2, 4))[0]
        return torch.stack([self.head(state).tanh() for state in states.unbind(1)]).sum(0)


def toggled(model, bare, optimizer, executor, number):
    """A layer is frozen in every other step."""
    bare.middle.requires_grad_(number % 2 == 0)
    plainly(model, bare, optimizer, executor, number)


def penalised(model, bare, optimizer, executor, number):
    """A penalty on the gradients of the loss, which backward goes through again."""
    loss = of_loss(model, number)
    slopes = torch.autograd.grad(loss, [bare.first.weight, bare.last.weight], create_graph=True)
    (loss + sum(slope.square().sum() for slope in slopes)).backward()
    optimizer.step()
    optimizer.zero_grad()


def averaged(model, bare, optimizer, executor, number):
    """Gradients clipped, weights clamped after the step, and their average a teacher."""
    of_loss(model, number).backward()
    settled(executor)
    nn.utils.clip_grad_norm_(bare.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    settled(executor)
    with torch.no_grad():
        for tensor in bare.parameters():
            tensor.clamp_(-0.3, 0.3)
    if number == 0:
        bare.__dict__["mean"] = AveragedModel(bare)
    bare.__dict__["mean"].update_parameters(bare)
    with torch.no_grad():
        bare.last.bias.add_(bare.__dict__["mean"](torch.ones(1, 8)).mean())


def validated(model, bare, optimizer, executor, number):
    """Evaluation between backward and step, and after it."""
    of_loss(model, number).backward()
    with torch.no_grad():
        of_loss(bare.eval(), 90)
    optimizer.step()
    optimizer.zero_grad()
    with torch.inference_mode():
        of_loss(bare, 91)
    bare.train()


def zeroed(model, bare, optimizer, executor, number):
    """Gradients are zeroed in place before backward."""
    optimizer.zero_grad(set_to_none=False)
    of_loss(model, number).backward()
    optimizer.step()


def cast(model, bare, optimizer, executor, number):
    """Forward in bfloat16 but for a part of it."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = of_loss(model, number)
        with torch.autocast("cpu", enabled=False):
            extra = functional_call(bare, dict(bare.named_parameters()), torch.ones(2, 8)).mean()
    (loss + weight(number) * extra).backward()
    optimizer.step()
    optimizer.zero_grad()


def twofold(model, bare, optimizer, executor, number):
    """A second optimizer for the biases, which execute() does not know."""
    if number == 0:
        biases = [tensor for tensor in bare.parameters() if tensor.dim() == 1]
        bare.__dict__["second"] = torch.optim.Adagrad(biases, lr=0.05)
    of_loss(model, number).backward()
    optimizer.step()
    bare.__dict__["second"].step()
    bare.zero_grad()


def searched(model, bare, optimizer, executor, number):
    """A step with several backwards."""

    def closure():
        optimizer.zero_grad()
        loss = of_loss(model, number)
        loss.backward()
        return loss.detach().mul(0).add(1)  # the search is to go on alike on all ranks

    optimizer.step(closure)


def fused(model):
    """AdamW, fused, each parameter in a group of its own."""
    groups = [{"params": [tensor], "lr": 0.01 / (k + 1)} for k, tensor in enumerate(model.parameters())]
    return torch.optim.AdamW(groups, amsgrad=True, fused=True)


def of_weights(model):
    """SGD of all that is not a bias."""
    return torch.optim.SGD(
        [tensor for tensor in model.parameters() if tensor.dim() > 1], lr=0.05, nesterov=True, momentum=0.9
    )


def lbfgs(model):
    """LBFGS without a line search."""
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)


LOOPS = {
    "tied": Case(Tied, plainly),
    "channels last": Case(Images, plainly, fused),
    "parametrized": Case(Parametrized, plainly),
    "lazy": Case(Lazy, plainly, fused),
    "one memory": Case(OneMemory, plainly),
    "buffer replaced": Case(Replaced, plainly),
    "recurrent": Case(Recurrent, plainly),
    "toggled": Case(Layers, toggled, rules=WAITING, unused=True),
    "penalised": Case(Layers, penalised),
    "averaged": Case(Layers, averaged, rules=WAITING),
    "validated": Case(Images, validated, rules=WAITING),  # release names the parameter that is read too late
    "zeroed": Case(Layers, zeroed, rules=(*EAGER, "release")),
    "cast": Case(Layers, cast),
    "twofold": Case(Layers, twofold, of_weights, rules=EAGER),
    "searched": Case(Layers, searched, lbfgs, rules=EAGER),
}
