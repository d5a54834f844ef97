"""Unusual training loops, under DDP and under every rule: ``python -m tests.live.looping loops``."""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear
from torch.nn.parallel import DistributedDataParallel

from osfmodel.entities.plan import contiguous_plan
from osfmodel.runtime.executor import execute
from tests.live.executing import RULES, apart, main, told, workload_of

STEPS = 3
UNDER = ("plain", "split", "k2", "overlap", "all", "release")


def batch(seed):
    """The inputs of a seed."""
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Net(nn.Module):
    """Two layers and a head."""

    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = (nn.Linear(8, 8, dtype=torch.float64) for _ in range(3))

    def forward(self, inputs):
        return self.head(self.body(self.stem(inputs).tanh()).tanh())


class Loop:
    """An ordinary loop, of which others change parts.

    refused: what is raised, by rule; nothing else is
    raced:   a rule under which that happens, or not, as messages arrive
    unused:  whether parameters may be without a gradient
    """

    Model = Net
    raced = ""
    refused: ClassVar[dict[str, str]] = {}
    unused = False

    def __init__(self, rule):
        torch.manual_seed(5)
        self.rule, self.model, self.seen = rule, self.Model(), []
        self.trained = [tensor for tensor in self.model.parameters() if tensor.requires_grad]
        self.optimizer = torch.optim.SGD(self.trained, lr=0.1, momentum=0.9)
        self.before()
        self.trains, self.executor = self.train(self.model, self.optimizer)
        self.begin()

    def train(self, model, optimizer):
        """The callable to train in place of the model, and the executor if there is one."""
        if self.rule == "ddp":
            return DistributedDataParallel(model, find_unused_parameters=self.unused), None
        workload = workload_of(model)
        plan = contiguous_plan(workload, [1, 3, len(workload.gradients)])
        released = self.rule == "release"
        plan = replace(plan, release=True) if released else plan.under(RULES[self.rule])
        return model, execute(model, optimizer, plan, limit=60, unused=self.unused)

    def before(self):
        """Before training is set up."""

    def begin(self):
        """After it."""

    def inputs(self, number):
        """A batch that each rank and each step has of its own."""
        return batch(number * dist.get_world_size() + dist.get_rank())

    def loss(self, number):
        """Of a step."""
        return self.trains(self.inputs(number)).square().mean()

    def step(self, number):
        """One step."""
        self.loss(number).backward()
        self.between()
        self.optimizer.step()
        self.after()
        self.optimizer.zero_grad()

    def between(self):
        """Between backward and step."""

    def after(self):
        """After step."""

    def synchronize(self):
        """As the guide says before gradients are looked at."""
        if self.executor is not None:
            self.executor.synchronize()

    def result(self):
        """All that was computed."""
        if self.executor is not None:
            self.executor.close()
        return [*self.model.parameters(), *(torch.as_tensor(one, dtype=torch.float64) for one in self.seen)]


IN_FLIGHT = "UsageError: gradients are still under way while forward overlaps communication"
GONE = "UsageError: the plan releases gradients: parameters are updated in backward and nothing is left"
OVERLAPPED = dict.fromkeys(("overlap", "all"), IN_FLIGHT)


def used(name):
    """The refusal of a use after release has updated the parameter."""
    return (
        f"UsageError: {name} was used between backward and step(), but the plan releases gradients and had updated it"
    )


class Tied(Loop):
    """A weight is used before its module is called, and the bias of a later layer."""

    class Model(Net):
        def forward(self, inputs):
            early = linear(inputs, self.head.weight.t()) + self.body.bias
            return self.head(self.body(self.stem(early).tanh()).tanh())


class TiedToItself(Loop):
    """A module under two names, and one weight in two modules, the later of which transposes it."""

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.again, self.out = self.body, nn.Linear(8, 8, dtype=torch.float64)
            self.out.weight = self.stem.weight

        def forward(self, inputs):
            return self.out(self.again(super().forward(inputs)).tanh()) @ self.stem.weight


class Momentum(Loop):
    """MoCo: forward first moves a second encoder, by ``.data``, to the one that is trained."""

    class Model(Net):
        def __init__(self):
            super().__init__()
            self.key = deepcopy(self.head).requires_grad_(False)

        def forward(self, inputs):
            for key, query in zip(self.key.parameters(), self.head.parameters(), strict=True):
                key.data.mul_(0.9).add_(query.data, alpha=0.1)
            return super().forward(inputs) - self.key(inputs)


class Scaled(Loop):
    """Forward reads weights under no_grad, and scales the inputs of their modules by them."""

    class Model(Net):
        def forward(self, inputs):
            with torch.no_grad():
                norm = sum(tensor.norm() for tensor in (self.head.weight, self.body.bias))
            return super().forward(inputs * norm)


class Kept(Loop):
    """``.data`` of the weights, and an array of NumPy, kept from the beginning and read in forward."""

    def begin(self):
        self.kept = [tensor.data for tensor in self.trained]
        self.array = self.model.body.bias.detach().numpy()

    def loss(self, number):
        scale = sum(tensor.norm().item() for tensor in self.kept) + float(self.array.sum())
        return self.trains(self.inputs(number) * scale).square().mean()


class Detached(Loop):
    """A weight is used through ``.data`` in forward before its module, where backward needs it again."""

    class Model(Net):
        def forward(self, inputs):
            return super().forward((self.stem(inputs) @ self.head.weight.data).tanh() @ self.body.weight.detach())


class ReadInBackward(Loop):
    """A hook reads in backward a weight whose gradient is there already, and, if it has arrived, released."""

    raced = "release"
    refused: ClassVar = {"release": used("'head.weight'")}

    class Model(Net):
        def forward(self, inputs):
            carried = self.stem(inputs).tanh()
            carried.register_hook(lambda gradient: gradient * self.head.weight.data.norm())
            return self.head(self.body(carried).tanh())


class ClippedInHook(Loop):
    """A step pre-hook, registered after training is set up, clips gradients."""

    refused: ClassVar = OVERLAPPED | {"release": GONE}

    def clip(self, *_):
        nn.utils.clip_grad_norm_(self.trained, 0.1)

    def begin(self):
        self.optimizer.register_step_pre_hook(self.clip)


class WaitingHook(ClippedInHook):
    """The same, waiting for gradients before."""

    refused: ClassVar = {"release": GONE}

    def clip(self, *_):
        self.synchronize()
        super().clip()


class LateHook(ClippedInHook):
    """The same, registered between backward and step."""

    refused: ClassVar = dict.fromkeys(
        ("overlap", "all", "release"), "UsageError: the step pre-hook ClippedInHook.clip was reg"
    )

    def begin(self):
        pass

    def between(self):
        self.optimizer.register_step_pre_hook(self.clip)


class RateInHook(Loop):
    """A step pre-hook, registered after training is set up, sets the learning rate of the step."""

    refused: ClassVar = {"release": "UsageError: the optimizer's option 'lr' was changed between backward and step()"}

    def begin(self):
        self.optimizer.register_step_pre_hook(lambda *_: self.optimizer.param_groups[0].update(lr=0.02))


class EditedGradients(Loop):
    """Hooks after accumulation, registered after training is set up, edit gradients or put others in their place."""

    def begin(self):
        def replaced(tensor):
            tensor.grad = tensor.grad.clamp(-0.01, 0.01) + 0.1 * dist.get_rank()

        def edited(tensor):
            tensor.grad.mul_(0.3 + dist.get_rank())

        self.model.head.weight.register_post_accumulate_grad_hook(replaced)
        self.model.stem.weight.register_post_accumulate_grad_hook(edited)
        self.model.body.bias.register_hook(lambda gradient: gradient * 2)


class OtherGradients(Loop):
    """A hook after accumulation reads the gradient of another parameter, which DDP has not averaged yet."""

    refused: ClassVar = dict.fromkeys(UNDER, "UsageError: the gradients of this backward are on their way") | {
        "release": ("UsageError: the gradients of this backward are on their way", "UsageError: the plan releases")
    }

    def begin(self):
        def edited(tensor):
            tensor.grad.mul_(self.model.head.weight.grad.norm())

        self.model.stem.weight.register_post_accumulate_grad_hook(edited)


class Removed(Loop):
    """The gradient of one parameter is removed between backward and step, as for a layer that is frozen at first."""

    refused: ClassVar = dict.fromkeys(("overlap", "all"), "UsageError: gradients are still under way") | {
        "release": "UsageError: the gradient of 'head.weight' was removed between backward and step()"
    }

    def between(self):
        self.model.head.weight.grad = None


class SteppedTwice(Loop):
    """Two steps with the same gradients."""

    refused: ClassVar = dict.fromkeys(("overlap", "all", "release"), "UsageError: step() was called twice")

    def after(self):
        self.optimizer.step()


TURNED_WRONG = (
    Tied, TiedToItself, Momentum, Scaled, Kept, Detached, ReadInBackward, ClippedInHook, WaitingHook, LateHook,
    RateInHook, EditedGradients, OtherGradients,
)  # fmt: skip
"""Loops that were trained wrong without a word."""


class Averaged(Loop):
    """The exponential average of the weights, read after each step, is a teacher."""

    def before(self):
        self.teacher = deepcopy(self.model).requires_grad_(False)

    def after(self):
        torch._foreach_lerp_([*self.teacher.parameters()], [tensor.data for tensor in self.trained], 0.1)

    def loss(self, number):
        return (self.trains(self.inputs(number)) - self.teacher(self.inputs(number)) + 1).square().mean()


class Adversarial(Loop):
    """Two models and optimizers, the one trained through the other, whose gradients of that are thrown away."""

    refused: ClassVar = {"release": used("'stem.weight'")}

    def begin(self):
        self.maker = deepcopy(self.Model())
        self.making = torch.optim.SGD(self.maker.parameters(), lr=0.1)
        self.makes, self.other = self.train(self.maker, self.making)

    def step(self, number):
        made = self.makes(self.inputs(number))
        (self.trains(made.detach()).square().mean() + self.trains(self.inputs(number)).mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.trains(made).mean().backward()
        self.making.step()
        self.making.zero_grad()
        self.optimizer.zero_grad()

    def result(self):
        if self.other is not None:
            self.other.close()
        return [*super().result(), *self.maker.parameters()]


class Penalised(Loop):
    """The loss has the norm of its gradient, and the norm of each parameter."""

    def loss(self, number):
        inputs = self.inputs(number).requires_grad_()
        loss = self.trains(inputs).square().mean()
        (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
        return loss + slope.square().mean() + 0.01 * sum(tensor.abs().sum() for tensor in self.trained)


class Shallow(Loop):
    """Stochastic depth, in evaluation between steps too."""

    unused = True
    refused: ClassVar = {"release": "UsageError: rank 0: a plan that releases gradients updates every parameter"}

    class Model(Net):
        turn = 0

        def forward(self, inputs):
            self.turn += 1
            carried = self.stem(inputs).tanh()
            return self.head(self.body(carried).tanh() if self.turn % 3 else carried)

    def after(self):
        with torch.no_grad():
            self.seen.append(float(self.model(batch(99)).sum()))


class LookAhead(Loop):
    """Every second step goes back half the way, and forgets its momentum; a schedule reads weights."""

    def before(self):
        self.slow = [tensor.detach().clone() for tensor in self.trained]
        self.count = 0

    def after(self):
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.model.head.weight.norm().item())
        if self.count % 2 == 0:
            for slow, fast in zip(self.slow, self.trained, strict=True):
                fast.data.copy_(slow.lerp_(fast.data, 0.5))
                self.optimizer.state[fast]["momentum_buffer"].zero_()


class ForgottenMomentum(Loop):
    """The state of the optimizer is emptied after a step."""

    def after(self):
        self.optimizer.state.clear()


class Clamped(Loop):
    """Weights are changed by hand after a step: clamped, written one by one, and put into one flat tensor."""

    def after(self):
        self.model.stem.weight.data.clamp_(-0.1, 0.1)
        with torch.no_grad():
            self.model.head.bias[0] = 0.5
        self.optimizer.zero_grad()
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(self.trained).detach() * 0.9, self.trained)


class Clipped(Loop):
    """Clipped between backward and step, after waiting for it."""

    refused: ClassVar = {"release": GONE}

    def between(self):
        self.synchronize()
        self.seen.append(float(nn.utils.clip_grad_norm_(self.trained, 0.1)))


class Sharpened(Loop):
    """SAM: a second backward at weights that were moved along the gradient of the first."""

    refused: ClassVar = {"release": GONE}

    def step(self, number):
        self.loss(number).backward()
        self.synchronize()
        moves = [0.1 * tensor.grad for tensor in self.trained]
        with torch.no_grad():
            torch._foreach_add_(self.trained, moves)
        self.optimizer.zero_grad()
        self.loss(number).backward()
        with torch.no_grad():
            torch._foreach_sub_(self.trained, moves)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Watched(Loop):
    """Norms of weights are written down by hooks before and after steps, and by state_dict."""

    refused: ClassVar = {"release": used("'stem.weight'")}

    def begin(self):
        for register in (self.optimizer.register_step_pre_hook, self.optimizer.register_step_post_hook):
            register(lambda *_: self.seen.extend(tensor.norm().item() for tensor in self.trained))

    def after(self):
        self.seen += [tensor.norm().item() for tensor in self.model.state_dict().values()]


class SecondForward(Loop):
    """Another forward between backward and step."""

    refused: ClassVar = {"release": used("'stem.weight'")}

    def between(self):
        self.seen.append(float(self.model(batch(99)).sum()))


class Swapped(Loop):
    """Forward normalises weights in place, before they are used; Polyak's average by AveragedModel."""

    def before(self):
        self.averaged = torch.optim.swa_utils.AveragedModel(self.model)

    class Model(Net):
        def forward(self, inputs):
            self.head.weight.data.div_(self.head.weight.data.norm())
            return super().forward(inputs)

    def after(self):
        self.averaged.update_parameters(self.model)

    def result(self):
        return [*super().result(), *self.averaged.module.parameters()]


OTHERS = (
    Averaged, Adversarial, Penalised, Shallow, LookAhead, ForgottenMomentum, Clamped, Clipped, Sharpened, Watched,
    SecondForward, Swapped, Removed, SteppedTwice,
)  # fmt: skip


def trained(kind, rule):
    """The result of a loop under a rule."""
    loop = kind(rule)
    for number in range(STEPS):
        loop.step(number)
    return [tensor.detach().clone() for tensor in loop.result()]


def cases(turns=False):
    """{loop: the rules that it is trained under}: all, or two by turns."""
    kinds = enumerate((*TURNED_WRONG, *OTHERS))
    return {kind: (UNDER[k % 6], UNDER[(k + 2) % 6]) if turns else UNDER for k, kind in kinds}


def loops(turns=False):
    """{loop and rule: distance from DDP, or what is told}"""
    found = {}
    for kind, under in cases(turns).items():
        reference = trained(kind, "ddp")
        for rule in under:
            made = []
            error = told(partial(lambda made, kind, rule: made.extend(trained(kind, rule)), made, kind, rule))
            found[f"{kind.__name__} {rule}"] = apart(made, reference) if made else error
    return found


def _all(words):
    return (words,) if isinstance(words, str) else words


def expected(turns=False):
    """{loop and rule: (beginnings of what is told, if anything, and whether all may go well in spite of it)}"""
    return {
        f"{kind.__name__} {rule}": (_all(kind.refused.get(rule, ())), rule == kind.raced)
        for kind, under in cases(turns).items()
        for rule in under
    }


if __name__ == "__main__":
    main({"loops": loops, "turns": partial(loops, turns=True)}, *sys.argv[1:])
