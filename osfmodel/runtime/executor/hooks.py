"""Hooks of an executor that copies of the model leave out, and the end of a backward, also of nested ones.

The user's hooks on gradients and before steps run before ours, whenever registered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import ref

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.messages import Gradient


class Hook:
    """A hook of one model. A copy of the model, deep or pickled, has a hook that does nothing in its place.

    torch.compile does not look into it: tracing would touch parameters that wait for their update.

    copied: called where a copy is made
    """

    __slots__ = ("_call", "_copied")

    def __init__(self, call: Callable[..., Any], copied: Callable[[], None]) -> None:
        self._call, self._copied = call, copied

    def __call__(self, *given: Any) -> Any:
        dynamo = sys.modules.get("torch._dynamo")  # as soon as something is compiled
        return self._call(*given) if dynamo is None else dynamo.disable(self._call)(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        self._copied()
        return getattr, (nullcontext(), "__exit__")  # takes anything, returns None, and loads without this package


class Ending:
    """The end of a backward; of the outermost if they are nested, as with reentrant checkpoints.

    end:    called where it ends well
    failed: called where it does not
    """

    def __init__(self, end: Callable[[], None], failed: Callable[[], None]) -> None:
        self._end, self._failed = end, failed
        self._guard: Any = None

    def wait(self) -> None:
        """Wait for the end of the backward that is under way; called in one of its hooks."""
        import torch

        outer = _outer()
        end = partial(self._end) if outer is None else partial(self._go_on, outer)
        self._guard = ref(end, lambda _: self._failed())  # autograd lets go of it when backward is over, however
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def _go_on(self, outer: Any) -> None:
        """Handle the normal end of a nested backward: wait for that of ``outer`` once it reaches its next nodes."""
        self._guard = None
        handles: list[Any] = []

        def wait(*_: Any) -> None:
            for handle in handles:
                handle.remove()
            if handles:
                handles.clear()
                self.wait()

        handles += [node.register_prehook(wait) for node, _ in outer.next_functions if node is not None]


def _outer() -> Any:
    """The autograd node inside whose backward this one runs; None if it is not nested."""
    from torch.autograd.function import BackwardCFunction

    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not BackwardCFunction.apply.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]


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
