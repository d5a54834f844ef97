"""ByteScheduler: equal pieces of tensors, those nearest the input first, few enough in flight to overtake.

Y. Peng et al., "A generic communication scheduler for distributed DNN training acceleration", SOSP 2019, with what is
not in the paper from its released code (bytedance/byteps, branch bytescheduler: docs/scheduling.md, bytecore.py). A
tensor above the partition is cut evenly into pieces no larger; of the pieces whose gradients are there the one nearest
the input is handed to the network while there is credit; each takes its size from the credit, which may fall below 0,
and gives it back on arrival. There is no barrier: a layer's forward waits for its own gradient. The code tunes the
credit by Bayesian optimisation while it runs; here the caller sets it, by default to the code's initial value.
"""

from __future__ import annotations

from itertools import pairwise

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.errors import PlanError
from osfmodel.entities.plan import Block, Bucket, Objective, Plan
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import PlanRule, Question, Solution, answer

PARAMETER = element_bytes("float32")
"""Bytes of a parameter: the code counts parameters, all of its examples are float32."""
PARTITION = 1_000_000 * PARAMETER
"""Default of BYTESCHEDULER_PARTITION: 1 M parameters."""
CREDIT = 4_000_000 * PARAMETER
"""Default of BYTESCHEDULER_CREDIT: 4 M parameters, 4 partitions."""
DOCUMENTED = (
    (PARTITION, CREDIT),
    (8_000_000 * PARAMETER, 16_000_000 * PARAMETER),
    (4_000_000 * PARAMETER, 16_000_000 * PARAMETER),
)
"""(partition, credit): the defaults, docs/scheduling.md's advice for all-reduce, and DeAR's baseline (dear_pytorch)."""


def caveats(workload: Workload) -> tuple[str, ...]:
    """Caveats for every use of the plan."""
    return ("byte-scheduler has the partition and credit that its code starts with; the code then tunes the credit",)


def solve(question: Question) -> Solution:
    """The plan with the default partition and credit, whatever communication costs."""
    return answer(question, plan(question.workload).under(question.objective))


def plan(workload: Workload, partition: int = PARTITION, credit: int = CREDIT) -> Plan:
    """Pieces of about ``partition`` bytes in order of priority, ``credit`` bytes in flight, and one piece more at most.

    Raises PlanError for a partition of less than 1 byte, DataError for such a credit.
    """
    if partition < 1:
        raise PlanError(f"a partition of {partition!r} bytes: it must be 1 or more")
    buckets = tuple(
        Bucket((Block(layer.name, start, end - start),))
        for layer in workload.layers
        if layer.gradient_bytes
        for start, end in pairwise(cuts(layer.gradient_bytes, partition, element_bytes(layer.dtype)))
    )
    return Plan(workload.name, buckets, forward_overlap=True, credit=credit)


def cuts(size: int, partition: int, element: int) -> list[int]:
    """Positions that cut a tensor into the fewest equal pieces of at most ``partition``, at whole elements."""
    count = max(min(-(-size // partition), size // element), 1)
    inner = [size * piece // count // element * element for piece in range(1, count)]
    return [0, *inner, size]


RULE = PlanRule(solve, "equal pieces by priority, with credit (SOSP'19)", caveats, Objective(forward_overlap=True))
