"""Hooks of an executor that copies of the model leave out, and the end of a backward, also of nested ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from weakref import ref


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
