"""Updates put off into the next forward: each parameter is updated just before the module that uses it runs.

Whoever reads or writes a parameter before that, in forward or outside it, trips over it, and it is updated then. Where
other tensors share its memory, which could be read in its stead, the update is not put off.

The user's own optimizer makes every update, with all gradients out of its sight but those that are due. So its state
and its ``state_dict`` are what they would be, for an optimizer that treats each parameter by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.messages import Gradient
from osfmodel.runtime.executor.separate import (
    GROUPLESS,
    StateTripwire,
    Tripwire,
    options_of,
    require_separate,
    shared,
    update,
    veil_type,
)

EARLY = (
    "gradients are still under way while forward overlaps communication: call the executor's synchronize() before you "
    "read or change them (clipping, unscaling). Call zero_grad() only after step(), with set_to_none=True"
)
AGAIN = (
    "the gradient of {} from the previous step was not cleared: with forward overlap, call step() after each backward "
    "and zero_grad() after each step, or put no_sync() around all but the last backward"
)
STALE = (
    "{} was used in forward before it was updated: run forward after step(), or set forward_overlap to false (as for "
    "TorchScript and functorch, whose use PyTorch does not show)"
)


def require_possible(model: Any, optimizer: Any, parameters: Iterable[Any]) -> None:
    """Raise UsageError if updates of ``parameters`` cannot be put off."""
    require_separate(optimizer, parameters, "forward overlap")
    compiled = any(getattr(module, "_compiled_call_impl", None) for module in model.modules())
    if compiled or type(model).__name__ == "OptimizedModule":
        raise UsageError("forward overlap waits in each module, which a compiled model hides: run the plan without it")


class Deferral:
    """Put off updates: gradients are ``under_way`` after backward until step, and ``due`` until each is updated.

    finish:  waits until a gradient has arrived from all ranks
    telling: wraps a hook so that it tells other ranks if it raises
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        gradients: Sequence[Gradient],
        finish: Callable[[Gradient], None],
        telling: Callable[[Callable[..., None]], Callable[..., None]],
    ) -> None:
        self.optimizer, self.gradients, self.finish = optimizer, gradients, finish
        self.under_way = False
        self.due: dict[Gradient, None] = {}
        self._early: list[Gradient] = []
        self.handles: list[Any] = []
        self._veils: dict[Gradient, Any] = {}
        self._veil = veil_type(EARLY)
        self._options: list[dict[str, Any]] = []
        self._groups: dict[Gradient, int] = {}
        self._names = {module: name for name, module in model.named_modules()}
        self._owned = _owners(model, gradients)
        self._called: set[Any] | None = set()
        known = {id(gradient.parameter): gradient for gradient in gradients}
        self._tripwire = Tripwire(telling(lambda tensor: self._update([known[id(tensor)]])))
        self._state_tripwire = StateTripwire(optimizer, telling(self.synchronize))
        self._watch(model, telling)

    def _watch(self, model: Any, telling: Callable[[Callable[..., None]], Callable[..., None]]) -> None:
        """Hook the model: wait where parameters are used, and for everything where they are saved or loaded."""
        everything, before = telling(lambda *_: self.synchronize()), telling(self._before)
        for subject in (*self._names, self.optimizer):
            self.handles.append(subject.register_state_dict_pre_hook(everything))
            self.handles.append(subject.register_load_state_dict_pre_hook(everything))
        self.handles.append(self.optimizer.register_step_pre_hook(telling(lambda *_: self._put_off())))
        self.handles.append(self.optimizer.register_step_post_hook(lambda *_: self._cover()))
        # Before the user's own hooks, which may make of parameters what forward uses.
        self.handles += [module.register_forward_pre_hook(before, prepend=True) for module in self._names]

    def check(self, gradient: Gradient) -> None:
        """Raise UsageError if a new gradient of autograd's cannot be right."""
        if gradient in self.due:
            raise UsageError(STALE.format(repr(gradient.name)))
        if gradient in self._veils and gradient.parameter.grad is self._veils[gradient]:
            raise UsageError(AGAIN.format(repr(gradient.name)))
        if self.under_way:
            self._discard()

    def settle(self) -> None:
        """Make the updates of modules that were not called, after backward."""
        self._update(list(self.due))

    def _discard(self) -> None:
        """Discard the gradients of the iteration: ``zero_grad`` was called instead of ``step``."""
        for gradient in self.gradients:
            if gradient.parameter.grad is self._veils[gradient]:
                raise UsageError(AGAIN.format(repr(gradient.name)))
            self.finish(gradient)
            gradient.value = None
        self.under_way = False

    def sent(self) -> None:
        """Hide the gradients after backward: all are on their way."""
        self._settle_owners()
        self.under_way = True
        self._veils = {gradient: gradient.value.as_subclass(self._veil) for gradient in self.gradients}
        self._cover()

    def _cover(self) -> None:
        """Put veils in place of gradients, until ``zero_grad`` removes them."""
        for gradient, veil in self._veils.items():
            if self.under_way or gradient in self.due or gradient in self._early:
                gradient.parameter.grad = veil
        self._early = []

    def _put_off(self) -> None:
        """Put off an ``optimizer.step`` that begins: it finds no gradients, and its updates become due."""
        if self.due:
            raise UsageError("step() was called twice after one backward: with forward overlap call it once")
        if not self.under_way:
            return
        for gradient in self.gradients:
            if gradient.parameter.grad is not self._veils[gradient]:
                raise UsageError(EARLY)
        for gradient in self.gradients:
            gradient.parameter.grad = None
        self._options = [options_of(group) for group in self.optimizer.param_groups]
        place = {id(p): k for k, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        for gradient in self.gradients:
            if id(gradient.parameter) not in place:
                raise UsageError(GROUPLESS.format(repr(gradient.name)))
        self._groups = {gradient: place[id(gradient.parameter)] for gradient in self.gradients}
        self.under_way, self.due = False, dict.fromkeys(self.gradients)
        self._early = [gradient for gradient in self.gradients if shared(gradient.parameter)]
        self._update(self._early)
        self._state_tripwire.lay()
        self._tripwire.lay(gradient.parameter for gradient in self.due)

    def _before(self, module: Any, *_: Any) -> None:
        """Make the updates of a module that is about to run."""
        import torch

        if self._called is not None:
            self._called.add(module)
        if not self.due:
            return
        if torch.is_grad_enabled():
            self._update([gradient for gradient in self._owned.get(module, ()) if gradient in self.due])
        else:  # modules evaluate along shorter ways, past the modules inside them
            self.synchronize()

    def synchronize(self) -> None:
        """Make the updates that are due; before ``step``, wait for the gradients and put them in place."""
        self._update(list(self.due))
        if self.under_way:
            for gradient in self.gradients:
                self.finish(gradient)
                gradient.parameter.grad, gradient.value = gradient.value, None
            self.under_way, self._veils = False, {}

    def uncover(self) -> None:
        """Remove the remaining veils once nothing is under way or due any more."""
        self._tripwire.clear()
        self._state_tripwire.lift()
        for gradient, veil in self._veils.items():
            if gradient.parameter.grad is veil:
                gradient.parameter.grad = None

    def _update(self, gradients: Sequence[Gradient]) -> None:
        """Step the optimizer for these gradients alone, with its options at the call of ``step``."""
        groups: dict[int, list[Any]] = {}
        covered = [gradient.parameter.grad for gradient in gradients]
        for gradient in gradients:
            self.finish(gradient)
            self._tripwire.lift(gradient.parameter)
            gradient.parameter.grad = gradient.value
            groups.setdefault(self._groups[gradient], []).append(gradient.parameter)
        self._state_tripwire.lift()
        if groups:
            update(self.optimizer, [{**self._options[k], "params": groups[k]} for k in sorted(groups)])
        for gradient, cover in zip(gradients, covered, strict=True):
            gradient.parameter.grad, gradient.value = cover, None
            del self.due[gradient]
        if self.due:
            self._state_tripwire.lay()

    def _settle_owners(self) -> None:
        """Move gradients of modules that were not called to their parents, after the first forward."""
        called, self._called = self._called, None
        if called is None:
            return
        modules = {name: module for module, name in self._names.items()}
        for owner in [module for module in self._owned if module not in called]:
            name = self._names[owner]
            while name and modules[name] not in called:
                name = name.rpartition(".")[0]
            self._owned.setdefault(modules[name], []).extend(self._owned.pop(owner))


def _owners(model: Any, gradients: Sequence[Gradient]) -> dict[Any, list[Gradient]]:
    """The gradients of each module's own parameters; a shared one belongs to all modules that have it."""
    known = {id(gradient.parameter): gradient for gradient in gradients}
    found = {
        module: [known[id(p)] for p in module.parameters(recurse=False) if id(p) in known]
        for module in model.modules()
    }  # fmt: skip
    return {module: owned for module, owned in found.items() if owned}
