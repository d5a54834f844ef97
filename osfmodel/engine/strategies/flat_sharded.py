"""Flat sharded parameters (PyTorch FSDP1): as ``fully_sharded``, but by the rules of the older implementation.

Source: torch 2.13, ``torch/distributed/fsdp/_runtime_utils.py`` and ``_flat_param.py``.

* The parameters of a group are views of one flat parameter, which is padded once, to a multiple of the ranks, so that
  all-gathers need no copies. Gradients are copied into a flat one by autograd. With ``use_orig_params`` (``aligned``)
  each parameter begins at a multiple of 16 bytes.
* With ``limit_all_gathers``, the default, the thread that launches an all-gather first waits until the device uses
  fewer than two freed groups: it waits for the computation of the group that was freed two before. With ``unlimited``
  of the plan's sharding it does not.
* A group whose ``forward_prefetch`` is 1 gathers the next one before its forward. Autograd then deals with the flat
  gradient of that one, which was split earlier, only after the backward of the group before it. In backward a group
  gathers the one before it once it is there itself (BACKWARD_PRE), or when its gradients are (``late_prefetch``:
  BACKWARD_POST).
* Reduce-scatters never hold computation up. Memory counts the inputs of three.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import CHANNEL, COMPUTE
from osfmodel.engine.strategies.fully_sharded import ShardedHoldings, ShardedStep
from osfmodel.engine.strategies.issued import WHOLE
from osfmodel.engine.strategies.lowering import Strategy
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.modules import as_defined
from osfmodel.entities.plan import Plan
from osfmodel.entities.sharding import frozen_bytes
from osfmodel.entities.workload import Layer, Workload

FREED = 2
"""Freed groups that the device may still use as another is gathered (``_FreeEventQueue``)."""
ALIGNED = 16
"""Bytes to whose multiples parameters are aligned."""
INPUTS = 3
"""Inputs of reduce-scatters that memory counts."""


class FlatStep(ShardedStep):
    """A program under construction.

    freed: last computation of each group that was freed, the oldest first, as far as the limit knows them
    begun: groups that backward has got to
    early: groups that were gathered ahead in forward
    due:   the group whose gradients wait for the backward of the group before it; -1 for none
    """

    def __init__(self, workload: Workload, plan: Plan, pricing: Pricing, apart: bool = False) -> None:
        self.freed: deque[int] = deque()
        self.begun: set[int] = set()
        self.early: set[int] = set()
        self.due = -1
        super().__init__(workload, plan, pricing, apart)

    def _micro_batch(self) -> None:
        self.begun.clear()
        super()._micro_batch()

    def _flat_bytes(self, members: Sequence[Layer], dtype: str) -> int:
        """Bytes of a rank's part of a flat parameter."""
        own, end = {layer.name: layer for layer in members}, 0
        unit = ALIGNED // element_bytes(members[0].dtype) if self.rules.aligned else 1
        for name in as_defined(list(own)):
            end = -(-end // unit) * unit + own[name].elements
        return -(-end // self.ranks) * element_bytes(dtype or members[0].dtype)

    def exchanged_bytes(self, members: Sequence[Layer]) -> tuple[int, int]:
        """Bytes of a group as its parameters are gathered, and as its gradients are reduced."""
        types = self.rules.gather_dtype, self.rules.reduce_dtype or self.rules.gather_dtype
        gathered, reduced = (self.ranks * self._flat_bytes(members, dtype) for dtype in types)
        return gathered + self.ranks * frozen_bytes(members, self.ranks), reduced

    def split_bytes(self, members: Sequence[Layer]) -> int:
        """Bytes of a rank's part of a group, in the type of its parameters."""
        return self._flat_bytes(members, "")

    def _enter(self, group: int) -> None:
        """Gather a group before its forward, and the next one if that is asked for."""
        self._use(group)
        place = self.order.index(group) + 1
        for ahead in self.order[place : place + self.rules.groups[group].forward_prefetch]:
            self._gather(ahead)
            self.early.add(ahead)

    def _leave(self, group: int) -> None:
        """Free the parameters of a group after its forward, or keep them."""
        self.left.append(group)
        if self.rules.groups[group].reshard is not False:
            self._free(group)

    def _enter_backward(self, group: int) -> None:
        """Gather a group before its backward, if it is not there, and the one before it."""
        self.begun.add(group)
        self._use(group)
        if not self.rules.late_prefetch:
            self._gather_before(group)

    def _leave_backward(self, group: int) -> None:
        """Deal with a group after its backward, or once that of the group before it is over."""
        self._backward_over()
        if group in self.early:
            self.due = group
        else:
            self._end(group)

    def _backward_over(self) -> None:
        """Deal with the group that is due."""
        if self.due >= 0:
            group, self.due = self.due, -1
            self._end(group)

    def _end(self, group: int) -> None:
        """Free the parameters of a group, and reduce its gradients, unless a later micro-batch does."""
        if self.last or not self.rules.keep:
            self._free(group)
        if self.rules.late_prefetch:
            self._gather_before(group)
        if self.last or self.rules.reduce_each:
            self._reduce(group)

    def _gather_before(self, group: int) -> None:
        place = self.left.index(group)
        for ahead in reversed(self.left[max(0, place - self.rules.groups[group].backward_prefetch) : place]):
            if ahead not in self.begun:
                self._gather(ahead, backward=True)

    def _use(self, group: int) -> None:
        """Gather a group that is not there, and let computation wait for it."""
        self._gather(group)
        if group in self.gathers:
            self.before = (*self.before, self.gathers.pop(group))

    def _free(self, group: int) -> None:
        """Free the parameters of a group that are there, and note the computation that used them last."""
        if group in self.whole:
            self.give(self.whole.pop(group))
            backward = range(len(self.operations) - 1, -1, -1)
            self.freed.append(next(number for number in backward if self.operations[number].stream == COMPUTE))

    def _gather(self, group: int, backward: bool = False) -> None:
        """Issue the all-gather of a group, unless that was done, or its parameters are there."""
        if group in self.whole:
            return
        waits = self.after
        if len(self.freed) >= FREED and not self.rules.unlimited:
            waits = (*waits, self.freed.popleft())
        size = self.gathered[group]
        self.whole[group] = self.take(WHOLE, ("gathered_bytes", group))
        work = ("send", "all_gather", size, self.ranks)
        self.gathers[group] = self.add("all_gather", CHANNEL, self.names[group], work, waits, group)

    def _hosted(self, group: int, size: int, waits: tuple[int, ...], part: float = 1.0) -> tuple[int, ...]:
        """None: the host's work was measured under FSDP2."""
        return ()

    def _oldest(self) -> tuple[int, ...]:
        """Give inputs of reduce-scatters back, the oldest first, until there is room; computation waits for none."""
        while len(self.inputs) >= INPUTS:
            self.give(self.inputs.popleft()[1])
        return ()


class FlatHoldings(ShardedHoldings):
    """The memory of a step of FSDP1."""

    made = FlatStep


STRATEGY = Strategy(
    FlatStep.lower,
    "flat parameters gathered by group before use, gradients reduced to shards (FSDP1)",
    FlatHoldings,
    partial(FlatStep.lower, apart=True),
)
