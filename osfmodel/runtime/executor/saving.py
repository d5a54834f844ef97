"""Memory that plans save: activations recomputed in backward, and gradients released as soon as they are used.

A module to recompute is put under torch's checkpoint, which keeps the states of random numbers and of autocast. A
second forward would also change each rank's buffers: the running statistics of normalisation stay as they are
then, and other buffers that forward changes are an error.

With release each parameter is updated as soon as its mean is ready, and then has no gradient. The work of ``step`` has
been done when backward ends, with the options that the optimizer has at that time; ``step`` then finds nothing. It is
called as ever, for what hangs on it: its hooks, and the schedulers that follow it.
Where other tensors share a parameter's memory, such as one that the graph saved of ``parameter.data``, it is updated
when backward has ended. Whoever reads a parameter between its update and ``step`` trips over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from osfmodel.entities.errors import PlanError, UsageError
from osfmodel.runtime.executor.messages import Gradient, Message, following, without_memory
from osfmodel.runtime.executor.separate import (
    Groups,
    StateTripwire,
    Tripwire,
    options_of,
    shared,
    update,
    veil_type,
    veiled,
)


def require_recomputable(model: Any, names: Sequence[str]) -> None:
    """Raise PlanError if these are not modules of ``model``, each outside the others."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if not name or name not in modules:
            raise PlanError(
                f"the plan recomputes {name!r}, which is not a module inside the model: name it as "
                "model.named_modules() does"
            )
    for number, name in enumerate(names):
        inside = set(modules[name].modules())
        for other in (*names[:number], *names[number + 1 :]):
            if modules[other] in inside:
                raise PlanError(f"the plan recomputes {name!r} and in it {other!r}: name the outer or the inner ones")


class Recomputation:
    """Forwards of modules under checkpoints, until :meth:`undo`."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self._modules = [modules[name] for name in names]
        self._before = [module.__dict__.get("forward") for module in self._modules]
        for name, module in zip(names, self._modules, strict=True):
            module.forward = Checkpointed(name, module)

    def undo(self) -> None:
        """Restore the original forwards."""
        for module, before in zip(self._modules, self._before, strict=True):
            del module.forward
            if before is not None:
                module.forward = before
        self._modules, self._before = [], []


class Checkpointed:
    """The forward of a module, under a checkpoint. A copy of the module, deep or pickled, has the one without."""

    def __init__(self, name: str, module: Any) -> None:
        self.name, self.module, self.forward = name, module, module.forward
        self.own = "forward" in module.__dict__

    def __call__(self, *given: Any, **named: Any) -> Any:
        import torch
        from torch.utils.checkpoint import checkpoint

        if not torch.is_grad_enabled():
            return self.forward(*given, **named)
        own = [list(one) if isinstance(one, list) else one for one in given]  # DenseNet's list grows afterwards
        return checkpoint(self.forward, *own, use_reentrant=False, context_fn=self._contexts, **named)

    def _contexts(self) -> tuple[Any, Any]:
        return _watched(self.name, self.module), _without_statistics(self.module)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (SimpleNamespace(forward=self.forward) if self.own else self.module, "forward")


@contextmanager
def _watched(name: str, module: Any) -> Iterator[None]:
    """A context for the first forward. Raises UsageError if it changes buffers that a second one would change again."""
    normalising = {id(buffer) for one in _normalising(module) for buffer in one.buffers(recurse=False)}
    others = [(f"{name}.{key}", one) for key, one in module.named_buffers() if id(one) not in normalising]
    before = [one._version for _, one in others]
    yield
    for (key, one), version in zip(others, before, strict=True):
        if one._version != version:
            raise UsageError(f"forward changes the buffer {key!r}, which it would do twice: do not recompute {name!r}")


@contextmanager
def _without_statistics(module: Any) -> Iterator[None]:
    """A context for the second forward, on copies of the statistics: it saves as many tensors as the first."""
    kept = [(one, dict(one.named_buffers(recurse=False))) for one in _normalising(module)]
    for one, buffers in kept:
        for name, buffer in buffers.items():
            setattr(one, name, buffer.clone())
    try:
        yield
    finally:
        for one, buffers in kept:
            for name, buffer in buffers.items():
                setattr(one, name, buffer)


def _normalising(module: Any) -> list[Any]:
    """The modules in it that have running statistics."""
    from torch.nn.modules.batchnorm import _NormBase

    return [one for one in module.modules() if isinstance(one, _NormBase)]


GONE = (
    "the plan releases gradients: parameters are updated in backward and nothing is left to clip, unscale or look at: "
    "run a plan without release, and no GradScaler"
)
AGAIN = (
    "a second backward without step() before it: the plan releases gradients, so that the first one has updated the "
    "parameters: call step() after each, or put no_sync() around all but the last backward"
)
FOREIGN = (
    "step() found a gradient of {} that no bucket has brought. The plan releases gradients: run the last backward of a "
    "step without no_sync(), and set no gradients yourself"
)
CHANGED = (
    "the optimizer's option {} was changed between backward and step(), but the plan releases gradients and had "
    "updated parameters: change options before backward or after step(), or set release to false"
)
REMOVED = (
    "the gradient of {} was removed between backward and step(), but the plan releases gradients and had used it: call "
    "zero_grad() before backward or after step(), or set release to false"
)
TWICE = (
    "step() was called twice after one backward: the plan releases gradients, so a second step() "
    "has none: call it once, or run the plan with release false"
)
EARLY = (
    "{} was used between backward and step(), but the plan releases gradients and had updated it: use it before "
    "backward or after step(), call step() after each backward without no_sync(), or set release to false"
)


class Release:
    """Updates of parameters in backward.

    finish: waits until a message has arrived, and makes its means
    """

    def __init__(
        self,
        groups: Groups,
        messages: Sequence[Message],
        gradients: Sequence[Gradient],
        finish: Callable[[Message], None],
        telling: Callable[[Callable[..., None]], Callable[..., None]],
    ) -> None:
        self.groups, self.messages, self.finish = groups, messages, finish
        self._released, self._stepped, self._begun = 0, True, False
        self._late: list[Gradient] = []
        self._names = {id(gradient.parameter): gradient.name for gradient in gradients}
        self._tripwire = Tripwire(telling(self._read))
        self._state_tripwire = StateTripwire(groups.optimizer, telling(self._read))
        self._options: list[dict[str, Any]] = []
        veil = veil_type(GONE)
        self._veils = {gradient: veiled(without_memory(gradient.parameter), veil) for gradient in gradients}
        check = telling(self._check)
        self.handles = [gradient.parameter.register_hook(check) for gradient in gradients]

    def _check(self, _: Any) -> None:
        """Check a gradient that autograd is about to add to."""
        if not self._stepped:
            raise UsageError(AGAIN)

    def begin(self) -> None:
        """Begin with the first gradient of a backward."""
        self._released, self._late, self._begun = 0, [], True
        self._options = [options_of(group) for group in self.groups.optimizer.param_groups]

    def look(self) -> None:
        """Update, in the order of the plan, all that has arrived, up to the first that has not."""
        for message in self.messages[self._released :]:
            if message.work is None or not message.work.is_completed():
                return
            self._release(message)

    def end(self) -> None:
        """End backward: wait for the remaining messages. After that there are no gradients to look at."""
        for message in self.messages[self._released :]:
            self._release(message)
        self._update(self._late)
        self._late, self._stepped = [], False
        self._state_tripwire.lay()

    def _release(self, message: Message) -> None:
        self.finish(message)
        self._released = message.number + 1
        done = [gradient for gradient in message.gradients if gradient.messages[-1] is message]
        late = [gradient for gradient in done if shared(gradient.parameter)]
        self._late += late
        self._update([gradient for gradient in done if gradient not in late])
        message.buffer = None

    def _update(self, done: Sequence[Gradient]) -> None:
        """Step the optimizer for these gradients alone."""
        groups: dict[int, dict[str, Any]] = {}
        for gradient in done:
            group = self.groups.of(gradient.name, gradient.parameter)
            gradient.parameter.grad = gradient.value
            groups.setdefault(id(group), {**group, "params": []})["params"].append(gradient.parameter)
        with following(done):
            update(self.groups.optimizer, list(groups.values()))
        for gradient in done:
            gradient.parameter.grad, gradient.value, gradient.home = self._veils[gradient], None, None
        self._tripwire.lay(gradient.parameter for gradient in done)

    def _read(self, parameter: Any = None) -> None:
        """Refuse a use, before ``step``, of a parameter that has been updated, or of the optimizer's state."""
        name = "the optimizer's state" if parameter is None else repr(self._names[id(parameter)])
        raise UsageError(EARLY.format(name))

    def before_step(self) -> None:
        """Prepare for ``step``, whose updates have all been made."""
        for gradient, veil in self._veils.items():
            found = gradient.parameter.grad
            if found is not None and found is not veil:
                raise UsageError(FOREIGN.format(repr(gradient.name)))
            if found is None and not self._stepped:
                raise UsageError(REMOVED.format(repr(gradient.name)))
        if self._stepped and self._begun:
            raise UsageError(TWICE)
        if not self._stepped:
            for before, group in zip(self._options, self.groups.optimizer.param_groups, strict=False):
                for key, value in options_of(group).items():
                    if key in before and not _same(before[key], value):
                        raise UsageError(CHANGED.format(repr(key)))
        self.uncover()
        self._stepped = True

    def uncover(self) -> None:
        """Remove veils that are left, and let everyone use the parameters."""
        self._tripwire.clear()
        self._state_tripwire.lift()
        for gradient, veil in self._veils.items():
            if gradient.parameter.grad is veil:
                gradient.parameter.grad = None


def _same(one: Any, other: Any) -> bool:
    same = one == other
    return bool(same.all()) if hasattr(same, "all") else bool(same)
