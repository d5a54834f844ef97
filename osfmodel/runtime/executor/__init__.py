"""Carry any plan out in an ordinary PyTorch training loop. Two lines::

    plan = osf.load_plan("plan.json")
    executor = execute(model, optimizer, plan)

and then the loop as ever: ``loss.backward(); optimizer.step(); optimizer.zero_grad()``. Use the model itself: nothing
wraps it. Gradients are averaged over the ranks, as DDP does, bucket by bucket in the order of the plan, as soon as they
are there; that order is the same on every rank, so ranks cannot disagree.

Without forward overlap all gradients have arrived when ``backward()`` returns, so that clipping, AMP and everything
else that looks at them works as with DDP. With it ``step()`` returns at once, and each parameter is updated just before
the module that uses it runs; gradients cannot be looked at meanwhile (it raises UsageError). ``synchronize()`` ends all
that is under way: call it between backward and step to clip or unscale, and after step before you read or write
parameters elsewhere than by calling the model or by ``state_dict()``, which wait by themselves. A closure given to
``step()`` runs once.

Every trainable parameter must get a gradient in each backward, unless ``unused`` is true: then the ranks without one
add zeros, and what no rank used is left alone, as with DDP's ``find_unused_parameters``. Buffers, such as BatchNorm's,
stay each rank's own, as with DDP's ``broadcast_buffers=False``. Code for GPUs is here where it is the same; none of it
was run on one.

Where the plan releases gradients each parameter is updated in backward and has none after it; sparse buckets send the
largest entries and keep the rest for later (``state_dict`` saves it); modules that the plan names are recomputed.

A rank on which something fails, in backward or here, lets go of its connections at once, so that gloo's other ranks
raise JobError when they next wait, not after ``limit``. After an error an executor raises JobError whenever it is used.
As with DDP, ranks must call backward equally often: nothing looks for one that does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

from osfmodel.entities.errors import JobError, OsfError, UsageError
from osfmodel.entities.plan import Plan
from osfmodel.runtime.executor.admission import TRAINED, agree, parameters_of, require_possible, require_untrained
from osfmodel.runtime.executor.channels import Channels, finish
from osfmodel.runtime.executor.deferral import Deferral
from osfmodel.runtime.executor.error_feedback import Mirror, follow
from osfmodel.runtime.executor.messages import Gradient, Message, messages_of
from osfmodel.runtime.executor.recompute import Recomputation
from osfmodel.runtime.executor.release import Release
from osfmodel.runtime.executor.separate import Groups
from osfmodel.runtime.executor.state import load_state, state_of

LIMIT = 300.0
"""Seconds that a collective may take, the wait for the slowest rank included."""


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

    layers: the plan's name of each trainable parameter, in the order of ``model.parameters()``; None where the plan
            calls them as the model does
    limit:  seconds after which a collective fails that another rank does not join
    unused: whether backward may leave parameters without a gradient: one small all-reduce more says which

    Rank 0's parameters and buffers go to all ranks. Raises, on every rank, UsageError for what cannot be trained so,
    and PlanError for a plan that does not belong to the model, wants what is not here, or differs between ranks.
    """
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise UsageError("call torch.distributed.init_process_group() before execute()")
    if not hasattr(torch.nn.Module, "register_load_state_dict_pre_hook"):
        raise UsageError(f"execute() needs hooks that torch {torch.__version__} does not have: use a newer one")
    parameters: dict[str, Any] = {}
    fault: OsfError | None = None
    try:
        if not isinstance(plan, Plan):
            raise UsageError(f"execute() needs a Plan, not {plan!r:.60}: load one with osfmodel.load_plan(file)")
        parameters = parameters_of(model, layers)
        require_possible(model, optimizer, plan, parameters, unused)
        require_untrained(model, parameters)
    except OsfError as error:
        fault = error
    agree(plan, parameters, unused, fault)
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), 0)
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
        self._census = Message(len(self.messages), (), torch.zeros(len(parameters), dtype=torch.int32, device=device))
        self._syncing, self._open, self._broken, self._sent = True, False, False, 0
        self._known = {id(tensor) for tensor in parameters.values()}
        TRAINED.update({id(tensor): tensor for tensor in parameters.values()})
        self._handles = [
            gradient.parameter.register_post_accumulate_grad_hook(self._telling(partial(self._ready, gradient)))
            for gradient in self.gradients
        ]
        self._handles.append(model.register_forward_pre_hook(self._telling(self._before_forward)))
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
        self._recomputation = Recomputation(model, plan.recompute)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here only adds gradients up: for all micro-batches of a step but the last."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def synchronize(self) -> None:
        """End what is under way: nothing without forward overlap. Raises JobError where another rank was lost."""
        if self.deferral is not None:
            self._telling(self.deferral.synchronize)()

    def close(self) -> None:
        """End what is under way and leave the model as it was found, with the parameters that it has now.

        After an error nothing is waited for: updates that were put off are not made.
        """
        if not self._broken:
            self.synchronize()
        for cover in (self.deferral, self.release):
            if cover is not None:
                cover.uncover()
        self._recomputation.undo()
        for number in self._known:
            TRAINED.pop(number, None)
        for handle in self._handles:
            handle.remove()
        self.channels.close()

    def state_dict(self) -> dict[str, Any]:
        """What this rank's sparse buckets have not sent, for a checkpoint of this rank; {} without such buckets."""
        self._require_whole()
        return state_of(self.gradients, self.channels.rank, self.channels.world)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what this rank saved. Raises UsageError where the state is another rank's or another plan's."""
        self._require_whole()
        load_state(state, self.gradients, self.channels.rank, self.channels.world)

    def _telling(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """``hook``, which breaks off where it raises, lest others wait for this rank."""

        def telling(*given: Any) -> Any:
            try:
                return hook(*given)
            except BaseException:
                self._break()
                raise

        return telling

    def _break(self) -> None:
        """Close our connections, which the other ranks' collectives notice: they hang on the group and its works."""
        self._broken = True
        for message in (*self.messages, self._census):
            message.work = None
        self.channels.drop()

    def _ready(self, gradient: Gradient, _: Any) -> None:
        """Autograd has added up the gradient of a parameter."""
        import torch

        self._require_whole()
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
            end = partial(self._end)  # autograd lets go of it when backward is over, however it ended
            self._guard = ref(end, self._over)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        elif gradient.taken:
            raise UsageError(f"{gradient.name!r} got a second gradient in one backward: reentrant checkpoints do that")
        with torch.no_grad():
            gradient.take(1 / self.channels.world)
        self._send()
        if self.release is not None:
            self.release.look()

    def _send(self) -> None:
        """Start, in the order of the plan, what is complete up to the first message that is not, or is still needed."""
        for message in self.messages[self._sent :]:
            if message.missing or message.work is not None:
                return
            message.start(self.channels)
            self._sent += 1

    def _over(self, _: Any) -> None:
        """Backward has ended or failed."""
        if self._open:
            self._break()

    def _end(self) -> None:
        """Backward has ended well."""
        if self.deferral is not None:
            self.deferral.settle()
        missing = [gradient for gradient in self.gradients if not gradient.taken]
        if self.unused:
            self._complete(missing)
        elif missing:
            raise UsageError(
                f"{len(missing)} parameters got no gradient in backward, {missing[0].name!r} the first: freeze with "
                "requires_grad_(False), before execute(), what the loss never depends on, or pass unused=True to it; "
                "checkpoints want use_reentrant=False"
            )
        for gradient in self.gradients:
            gradient.taken = False
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
        """Send something for every gradient that this rank lacks, then ask which were used anywhere."""
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
        """Start the all-gathers in the order in which forward needs them, each once its own part is there."""
        for message in sorted(self.messages, key=lambda one: min(self._place[piece.gradient] for piece in one.pieces)):
            self._wait(message)
            message.work = self.channels.all_gather(message.content(), message.shard)

    def _finish(self, gradient: Gradient) -> None:
        """Wait until the mean of a gradient is there."""
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
        """Until a collective has ended, if there is one."""
        if message.work is not None:
            what = "saying which parameters were used" if message is self._census else f"of bucket {message.number}"
            finish(message, f"in the collective {what}")

    def _before_forward(self, model: Any, *_: Any) -> None:
        import torch

        if torch.is_grad_enabled():
            self._require_whole()
            if any(tensor.requires_grad and id(tensor) not in self._known for tensor in model.parameters()):
                raise UsageError(
                    "the model has other trainable parameters than at execute(), unfrozen, added or assigned: "
                    "close() the executor and call execute() again"
                )

    def _before_step(self, optimizer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Where the step is put off or made already its closure is not: it runs now, and step is given its loss."""
        import torch

        self._require_whole()
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
