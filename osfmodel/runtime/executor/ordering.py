"""The order of hooks: the user's hooks on gradients and before steps run before ours, whenever registered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.messages import Gradient


def follow_gradients(
    gradients: Sequence[Gradient], ready: Callable[..., None], telling: Callable[[Any], Any]
) -> tuple[list[Any], list[Any]]:
    """Nodes of the graph, to be kept, and handles of their hooks: ``ready`` runs after all hooks of the parameter."""
    from torch.autograd.graph import get_gradient_edge

    nodes = [get_gradient_edge(gradient.parameter).node for gradient in gradients]
    handles = [
        node.register_hook(telling(partial(ready, gradient))) for node, gradient in zip(nodes, gradients, strict=True)
    ]
    bare = [gradient for gradient in gradients if gradient.released or gradient.unsent is not None]
    # The replacement of these in backward has no memory that a second gradient could be added to.
    handles += [gradient.parameter.register_hook(telling(gradient.require_first)) for gradient in bare]
    return nodes, handles


class StepHooks:
    """The hooks of ``optimizer`` before a step, of which those behind ``handles`` are ours."""

    def __init__(self, optimizer: Any, handles: Iterable[Any]) -> None:
        self._hooks: Any = getattr(optimizer, "_optimizer_step_pre_hooks", {})
        self._own = [handle.id for handle in handles if handle.hooks_dict_ref() is self._hooks]

    def _later(self) -> list[int]:
        """The user's hooks that come after ours."""
        numbers = list(self._hooks)
        return [number for number in numbers[numbers.index(self._own[0]) :] if number not in self._own]

    def place(self) -> None:
        """Move ours behind hooks that were registered since; not to be called while hooks run."""
        if self._own and self._later():
            for number in self._own:
                self._hooks.move_to_end(number)

    def require_last(self) -> None:
        """Raise UsageError if a hook was registered so late that it runs after ours."""
        for number in self._later():
            name = getattr(self._hooks[number], "__qualname__", repr(self._hooks[number]))
            raise UsageError(
                f"the step pre-hook {name} was registered after execute() and no backward has ended since, so that it "
                "would find no gradients: register it before execute(), or before backward"
            )
