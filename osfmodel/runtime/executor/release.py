"""Gradients given back in backward: each parameter is updated as soon as its mean is there, and has no gradient then.

What ``step`` would have done has been done when backward ends, with the options that the optimizer has at that time;
``step`` then finds nothing. It is called as ever, for what hangs on it: its hooks, and the schedulers that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError
from osfmodel.runtime.executor.messages import Gradient, Message, following
from osfmodel.runtime.executor.separate import Groups, update, veil_type

GONE = (
    "the plan releases gradients: parameters are updated in backward and nothing is left to clip, unscale or look at: "
    "run a plan without release, and no GradScaler"
)
AGAIN = (
    "a second backward without step() before it: the plan releases gradients, so that the first one has updated the "
    "parameters: call step() after each, or put no_sync() around all but the last backward"
)
FOREIGN = (
    "step() found a gradient of {} that no bucket has brought, of a backward under no_sync() or of your own: the plan "
    "releases gradients, so that the last backward of a step goes without no_sync()"
)


class Release:
    """Updates parameters in backward.

    finish: waits until a message has arrived, and makes the means of it
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
        self._released, self._stepped = 0, True
        veil = veil_type(GONE)
        self._veils = {gradient: _without_memory(gradient.parameter).as_subclass(veil) for gradient in gradients}
        check = telling(self._check)
        self.handles = [gradient.parameter.register_hook(check) for gradient in gradients]

    def _check(self, _: Any) -> None:
        """Autograd is about to add to a gradient."""
        if not self._stepped:
            raise UsageError(AGAIN)

    def begin(self) -> None:
        """The first gradient of a backward is there."""
        self._released = 0

    def look(self) -> None:
        """Update, in the order of the plan, all that has arrived, up to the first that has not."""
        for message in self.messages[self._released :]:
            if message.work is None or not message.work.is_completed():
                return
            self._release(message)

    def end(self) -> None:
        """Backward has ended: wait for what is left. From now on there is nothing to be looked at."""
        for message in self.messages[self._released :]:
            self._release(message)
        for gradient, veil in self._veils.items():
            gradient.parameter.grad = veil
        self._stepped = False

    def _release(self, message: Message) -> None:
        self.finish(message)
        self._released = message.number + 1
        done = [gradient for gradient in message.gradients if gradient.messages[-1] is message]
        groups: dict[int, dict[str, Any]] = {}
        for gradient in done:
            group = self.groups.of(gradient.name, gradient.parameter)
            gradient.parameter.grad = gradient.value
            groups.setdefault(id(group), {**group, "params": []})["params"].append(gradient.parameter)
        with following(done):
            update(self.groups.optimizer, list(groups.values()))
        for gradient in done:
            gradient.parameter.grad = gradient.value = gradient.home = None
        message.buffer = None

    def before_step(self) -> None:
        """``step`` begins: all that it would do has been done."""
        for gradient, veil in self._veils.items():
            found = gradient.parameter.grad
            if found is not None and found is not veil:
                raise UsageError(FOREIGN.format(repr(gradient.name)))
        self.uncover()
        self._stepped = True

    def uncover(self) -> None:
        """No gradients, in place of veils."""
        for gradient, veil in self._veils.items():
            if gradient.parameter.grad is veil:
                gradient.parameter.grad = None


def _without_memory(parameter: Any) -> Any:
    """One element in the shape of all."""
    return parameter.detach().new_zeros(()).expand(parameter.shape)
