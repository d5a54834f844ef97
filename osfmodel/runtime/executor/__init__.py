"""Run any plan in an ordinary PyTorch training loop. Two lines::

    plan = osf.load_plan("plan.json")
    executor = execute(model, optimizer, plan)

and then the loop as ever: ``loss.backward(); optimizer.step(); optimizer.zero_grad()``. Use the model itself: nothing
wraps it. Gradients are averaged over the ranks, as DDP does, bucket by bucket in the order of the plan, as soon as they
are there; that order is the same on every rank, so ranks cannot disagree.

Without forward overlap all gradients have arrived when ``backward()`` returns, so that clipping, AMP and everything
else that looks at them works as with DDP. With it ``step()`` returns at once, and each parameter is updated just before
the module that uses it runs, or before anything else reads or writes it; gradients cannot be looked at meanwhile (it
raises UsageError). ``synchronize()`` ends all that is under way: call it between backward and step to clip or unscale.
A closure given to ``step()`` runs once.

Every trainable parameter must get a gradient in each backward, unless ``unused`` is true: then the ranks without one
add zeros, and what no rank used is left alone, as with DDP's ``find_unused_parameters``. Buffers, such as BatchNorm's,
stay each rank's own, as with DDP's ``broadcast_buffers=False``. Code for GPUs is here where it is the same; none of it
was run on one.

If the plan releases gradients, each parameter is updated in backward and has none after it; sparse buckets send the
largest entries and keep the rest for later (``state_dict`` saves it); modules that the plan names are recomputed.

A rank on which something fails, in backward or here, lets go of its connections at once, so that gloo's other ranks
raise JobError when they next wait, and seldom only after ``limit`` (gloo may not tell a send that its receiver is
gone). After an error an executor raises JobError whenever it is used. As with DDP, ranks must call backward equally
often: nothing looks for one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from osfmodel.entities.errors import JobError, UsageError
from osfmodel.entities.plan import Plan
from osfmodel.runtime.executor.admission import TRAINED, admitted
from osfmodel.runtime.executor.channels import Channels, finish
from osfmodel.runtime.executor.deferral import Deferral
from osfmodel.runtime.executor.error_feedback import Mirror, follow
from osfmodel.runtime.executor.hooks import Ending, Hook, StepHooks, follow_gradients
from osfmodel.runtime.executor.messages import Gradient, Message, messages_of
from osfmodel.runtime.executor.saving import Recomputation, Release
from osfmodel.runtime.executor.separate import Groups
from osfmodel.runtime.executor.state import load_state, send_initial, state_of

LIMIT = 300.0
"""Longest time of a collective in seconds, with the wait for the slowest rank."""


def execute(
    model: Any,
    optimizer: Any,
    plan: Plan,
    *,
    layers: Sequence[str] | None = None,
    limit: float = LIMIT,
    unused: bool = False,
) -> Executor:
    """Train ``model`` under ``plan`` from now on; every rank calls it, after ``init_process_group``.

    layers: the plan's name of each trainable parameter, in the order of ``model.parameters()``; None if the plan
            has the model's names
    limit:  seconds after which a collective fails that another rank does not join
    unused: whether backward may leave parameters without a gradient: one more small all-reduce finds out which

    Rank 0's parameters and buffers go to all ranks. Raises, on every rank, UsageError for unsuitable models,
    and PlanError for a plan that does not belong to the model, wants what is not here, or differs between ranks.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise UsageError("call torch.distributed.init_process_group() before execute()")
    if not hasattr(torch.nn.Module, "register_load_state_dict_pre_hook"):
        raise UsageError(f"execute() needs hooks that torch {torch.__version__} does not have: use a newer one")
    parameters = admitted(model, optimizer, plan, layers, unused)
    send_initial(model)
    return Executor(model, optimizer, plan, parameters, limit, unused)


class Executor:
    """A model in training under a plan, as :func:`execute` returns it.

    messages: one for each bucket, in the order in which they are sent
    """

    def __init__(
        self, model: Any, optimizer: Any, plan: Plan, parameters: dict[str, Any], limit: float, unused: bool
    ) -> None:
        import torch

        device = next(iter(parameters.values())).device
        self.plan, self.unused, self.channels = plan, unused, Channels(plan.channels, device, limit)
        self.groups = Groups(optimizer) if plan.release or plan.mirror else None
        self.messages, self.gradients = messages_of(plan, parameters, self.channels.world, self.groups)
        self._place = {gradient: number for number, gradient in enumerate(self.gradients)}
        flags = torch.zeros(len(self.gradients), dtype=torch.int32, device=device)
        self._census = Message(len(self.messages), (), flags)
        self._ending = Ending(self._end, self._over)
        self._syncing, self._open, self._broken, self._sent = True, False, False, 0
        self._known = {id(tensor) for tensor in parameters.values()}
        TRAINED.update({id(tensor): tensor for tensor in parameters.values()})
        self._nodes, self._handles = follow_gradients(self.gradients, self._ready, self._telling)
        self._handles.append(model.register_forward_pre_hook(Hook(self._before_forward, self._require_copyable)))
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._telling(self._before_step)))
        self.deferral: Deferral | None = None
        if plan.forward_overlap:
            self.deferral = Deferral(model, optimizer, self.gradients, self._finish, self._telling)
            self._handles += self.deferral.handles
        self.release: Release | None = None
        if self.groups is not None and plan.release:
            self.release = Release(self.groups, self.messages, self.gradients, self._arrive, self._telling)
            self._handles += self.release.handles
        mirrors = [gradient.unsent for gradient in self.gradients if isinstance(gradient.unsent, Mirror)]
        self._handles += follow(model, None if plan.release else optimizer, mirrors, self._telling)
        self._step_hooks = StepHooks(optimizer, self._handles)
        self._recomputation = Recomputation(model, plan.recompute)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward only accumulates gradients: for all micro-batches of a step but the last."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def synchronize(self) -> None:
        """End all work under way, if forward overlaps. Raises JobError if another rank was lost."""
        if self.deferral is not None:
            self._telling(self.deferral.synchronize)()

    def close(self) -> None:
        """End all work under way and leave the model as it was found, with its present parameters.

        After an error nothing is awaited: updates that were put off are not made.
        """
        if not self._broken:
            self.synchronize()
        for cover in (self.deferral, self.release):
            if cover is not None:
                cover.uncover()
        for gradient in self.gradients:
            gradient.uncover()
        self._recomputation.undo()
        for number in self._known:
            TRAINED.pop(number, None)
        for handle in self._handles:
            handle.remove()
        self.channels.close()

    def state_dict(self) -> dict[str, Any]:
        """The unsent parts of this rank's sparse buckets, for a checkpoint of this rank; {} without such buckets."""
        self._require_whole()
        return state_of(self.gradients, self.channels.rank, self.channels.world)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the unsent parts of this rank. Raises UsageError if they are another rank's or another plan's."""
        self._require_whole()
        load_state(state, self.gradients, self.channels.rank, self.channels.world)

    def _telling(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """``hook``, made to break off if it raises, so that others do not wait for this rank."""

        def telling(*given: Any) -> Any:
            try:
                return hook(*given)
            except BaseException:
                self._break()
                raise

        return Hook(telling, self._require_copyable)

    def _require_copyable(self) -> None:
        """Raise UsageError if the model is copied while updates are put off."""
        if self.deferral is not None and self.deferral.due:
            raise UsageError(
                "the model is copied or saved as a whole while forward overlap puts updates off: call synchronize() of "
                "the executor first"
            )

    def _break(self) -> None:
        """Close our connections, which the other ranks' collectives notice: they hang on the group and its works."""
        self._broken = True
        for message in (*self.messages, self._census):
            message.work = None
        self.channels.drop()

    def _ready(self, gradient: Gradient, *_: Any) -> None:
        """Handle a gradient that autograd has accumulated, after the user's hooks."""
        import torch

        self._require_whole()
        if gradient.parameter.grad is None:  # nothing came, or a hook took it away
            return
        if self.deferral is not None:
            self.deferral.check(gradient)
        gradient.used = True
        if not self._syncing:
            return
        if not self._open:
            self._open, self._sent = True, 0
            if self.groups is not None:
                self.groups.look()
            if self.release is not None:
                self.release.begin()
            self._ending.wait()
        gradient.require_first()
        with torch.no_grad():
            gradient.take(1 / self.channels.world)
        self._send()
        if self.release is not None:
            self.release.look()

    def _send(self) -> None:
        """Start complete messages in the order of the plan, up to the first that is incomplete or still needed."""
        for message in self.messages[self._sent :]:
            if message.missing or message.work is not None:
                return
            message.start(self.channels)
            self._sent += 1

    def _over(self) -> None:
        """Handle the end or the failure of backward."""
        if self._open:
            self._break()

    def _end(self) -> None:
        """Handle the normal end of backward."""
        if self.deferral is not None:
            self.deferral.settle()
        missing = [gradient for gradient in self.gradients if not gradient.taken]
        if self.unused:
            self._complete(missing)
        elif missing:
            raise UsageError(
                f"{len(missing)} parameters got no gradient in backward, the first is {missing[0].name!r}: freeze with "
                "requires_grad_(False) the parameters that the loss never depends on, before execute(), or pass "
                "unused=True to it"
            )
        for gradient in self.gradients:
            gradient.taken = False
        self._step_hooks.place()
        if self.plan.split:
            self._gather()
        if self.deferral is not None:
            self.deferral.sent()
        elif self.release is not None:
            self.release.end()
        else:
            for message in self.messages:  # in their order: means of the first are made while the last are under way
                self._arrive(message)
            for gradient in self.gradients:
                self._finish(gradient)
                gradient.parameter.grad, gradient.value = gradient.value, None
        self._open = False

    def _complete(self, missing: Sequence[Gradient]) -> None:
        """Send something for every gradient that this rank lacks, then find out which were used on any rank."""
        for gradient in missing:
            if self.deferral is not None:
                self.deferral.check(gradient)
            gradient.lack(1 / self.channels.world)
        self._send()
        self._wait(self._census)
        flags = self._census.buffer
        flags.copy_(flags.new_tensor([gradient.used for gradient in self.gradients]))
        self._census.work = self.channels.all_reduce(flags)
        for gradient in self.gradients:
            gradient.used = False

    def _gather(self) -> None:
        """Start the all-gathers in the order in which forward needs them, each once its own part is ready."""
        for message in sorted(self.messages, key=lambda one: min(self._place[piece.gradient] for piece in one.pieces)):
            self._wait(message)
            message.work = self.channels.all_gather(message.content(), message.shard)

    def _finish(self, gradient: Gradient) -> None:
        """Wait until the mean of a gradient is ready."""
        self._require_whole()
        for message in gradient.messages:
            self._arrive(message)
        if gradient.absent:
            self._wait(self._census)
            if not self._census.buffer[self._place[gradient]]:
                gradient.value = gradient.kept
            gradient.absent, gradient.kept = False, None

    def _arrive(self, message: Message) -> None:
        """Wait until a bucket has arrived, if it is under way."""
        if message.work is not None:
            self._wait(message)
            message.land()
            message.reset()

    def _wait(self, message: Message) -> None:
        """Wait until a collective has ended, if there is one."""
        if message.work is not None:
            what = "saying which parameters were used" if message is self._census else f"of bucket {message.number}"
            finish(message, f"waiting for the collective {what}")

    def _before_forward(self, model: Any, *_: Any) -> None:
        """Raise UsageError if the model has other parameters; ``functional_call`` puts plain tensors in their place."""
        import torch

        if torch.is_grad_enabled():
            self._require_whole()
            others = (one for one in model.parameters() if id(one) not in self._known and one.requires_grad)
            if any(isinstance(one, torch.nn.Parameter) for one in others):
                raise UsageError(
                    "the model has other trainable parameters than at execute(), unfrozen, added or assigned: "
                    "close() the executor and call execute() again (functional_call: give it tensors, not Parameters)"
                )

    def _before_step(self, optimizer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run the closure now if the step is put off or already made, and give step its loss."""
        import torch

        self._require_whole()
        if self.deferral or self.release or self.plan.mirror:
            self._step_hooks.require_last()
        closure = named.get("closure", given[1] if len(given) > 1 else None)
        if closure is not None and (self.deferral or self.release or self.plan.mirror):
            with torch.enable_grad():
                loss = closure()
            given, named = given[:1], {**named, "closure": lambda: loss}
        if self.release is not None:
            self.release.before_step()
        return given, named

    def _require_whole(self) -> None:
        if self._broken:
            raise JobError("an error ended this executor, and ranks no longer agree: start again from a checkpoint")
