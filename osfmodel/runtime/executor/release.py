"""Gradients released in backward: each parameter is updated as soon as its mean is ready, and then has no gradient.

The work of ``step`` has been done when backward ends, with the options that the optimizer has at that time;
``step`` then finds nothing. It is called as ever, for what hangs on it: its hooks, and the schedulers that follow it.
Where other tensors share a parameter's memory, such as one that the graph saved of ``parameter.data``, it is updated
when backward has ended. Whoever reads a parameter between its update and ``step`` trips over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError
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
