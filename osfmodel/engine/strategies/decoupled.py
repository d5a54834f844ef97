"""Decoupled all-reduces (DeAR, ICDCS'23): a reduce-scatter in backward, an all-gather one group ahead of forward.

The reduce-scatter of a bucket is issued once its gradients are ready. The step of the optimizer waits for all of them,
and issues the all-gather of the bucket that forward needs first; each other one is issued as forward waits for the one
before it. What is gathered are gradients: every rank updates all parameters, those of a bucket in front of its forward.
A bucket is padded to a multiple of the ranks, by one element at least (``dear/dopt_rsag.py``). DeAR has a communication
library of its own over NCCL, and does not run over gloo: nothing blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from osfmodel.cost.pricing import Pricing
from osfmodel.engine.program import COMPUTE, Operation, Program
from osfmodel.engine.strategies.holdings import Holdings
from osfmodel.engine.strategies.lowering import GatheringStep, Strategy, require_only
from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Bucket, Plan
from osfmodel.entities.workload import Workload


def padded_bytes(bucket: Bucket, dtype: str, ranks: int) -> int:
    """Bytes of a bucket in its buffer: of one element more, or as many as make the next multiple of the ranks."""
    element = element_bytes(dtype)
    return (-(-bucket.size // element) // ranks + 1) * ranks * element


class DecoupledStep(GatheringStep):
    """A program under construction."""

    def padded_bytes(self, number: int, kind: str) -> int:
        """Bytes of either collective of a bucket."""
        bucket = self.plan.buckets[number]
        return padded_bytes(bucket, _dtypes(self.workload)[bucket.blocks[0].layer], self.pricing.workers)

    def arrived(self, number: int, gathered: int) -> tuple[int, ...]:
        """Add the update of a bucket, with the copy of its gradients, and return its number."""
        bucket, layers = self.plan.buckets[number], self.operations[gathered].layers
        time = self._per_byte() * bucket.size
        return (self.add(Operation("update", COMPUTE, layers, time, waits=(gathered,), bucket=number, quiet=True)),)

    def _next_forward(self, arrivals: Sequence[int]) -> None:
        """Add the step of the optimizer, which waits for all of ``arrivals``, then all-gathers, updates and forward."""
        stepped = self._after_backward(self._alone(), tuple(arrivals))
        self.gathering_forward((stepped,))


def _dtypes(workload: Workload) -> dict[str, str]:
    return dict(zip(workload.gradients.names, workload.gradients.dtypes, strict=True))


def lower(workload: Workload, plan: Plan, pricing: Pricing) -> Program:
    """The program of a step, from the start of one backward to the start of the next."""
    require_only(plan, "forward_overlap")
    if not plan.forward_overlap:
        raise PlanError(
            f"the strategy {plan.strategy} gathers in the next forward, and the plan has no forward_overlap"
        )
    step = DecoupledStep(workload, plan, pricing)
    return step.finished([step.scatter(number) for number in range(len(plan.buckets))])


class DecoupledHoldings(Holdings):
    """The memory of replicated weights and state, with padded buffers and a shard of each."""

    def gradient_buffers(self) -> int:
        """Bytes of the buffers that are sent, and of the shards of them."""
        dtypes = _dtypes(self.workload)
        sizes = [padded_bytes(bucket, dtypes[bucket.blocks[0].layer], self.workers) for bucket in self.plan.buckets]
        return sum(size + size // self.workers for size in sizes)


STRATEGY = Strategy(
    lower, "a reduce-scatter in backward and an all-gather one group ahead of forward (DeAR)", DecoupledHoldings
)
