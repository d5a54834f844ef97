"""Sentences on the limit of a job, one for each cause, given the seconds of a step that it costs.

A cause's label comes before its sentence, which so begins with a small letter.
"""

from __future__ import annotations

from statistics import median

from osfmodel.diagnosis.explanation import UNEXPLAINED, Explanation
from osfmodel.diagnosis.waits import used_map
from osfmodel.entities.display import how_many, show_bus_rate, show_bytes, show_time
from osfmodel.entities.rounding import plain_sum

REPLAY_ERROR = 0.05
"""Relative error of the replay from which the first sentence on a job says so."""

SEVERAL = 3
"""Largest number of process groups that a sentence names."""


def what_it_costs(one: Explanation, seconds: float) -> str:
    """Words for ``seconds`` of a step, also as a percentage of it."""
    part = seconds / one.step_time if one.step_time else 0.0
    return f"{show_time(seconds)} of a step of {show_time(one.step_time)} ({part:.0%})"


def replay_error(one: Explanation) -> str:
    """A caution about a replay that is off by more than REPLAY_ERROR of the step; "" if it is not."""
    off = one.replayed / one.step_time - 1 if one.step_time else 0.0
    if abs(off) <= REPLAY_ERROR:
        return ""
    if off > 0:
        return f"Careful: the replay takes {off:.0%} longer than the step, so costs are scaled down and rough."
    return f"Careful: {what_it_costs(one, one.missed)} is {UNEXPLAINED}, so the costs of causes are rough."


def input_stalls(one: Explanation, seconds: float) -> str:
    """A sentence on waiting for the data loader."""
    cost = what_it_costs(one, seconds)
    slowest = max(one.ranks, key=lambda rank: rank.parts.input)
    least = min(rank.parts.input for rank in one.ranks)
    where = f", most on rank {slowest.rank}" if slowest.parts.input > 2 * least and len(one.ranks) > 1 else ""
    return f"waiting for the data loader costs {cost}{where}."


def uneven_exchange(one: Explanation, seconds: float) -> str:
    """A sentence on all-to-alls in which some rank gets more bytes than the others."""
    cost = what_it_costs(one, seconds)
    return f"some ranks send or get more bytes than others, which costs {cost}."


def imbalance(one: Explanation, seconds: float) -> str:
    """A sentence on a rank that is slower, or later, than the others."""
    cost = what_it_costs(one, seconds)
    slow = next(rank for rank in one.ranks if rank.rank == one.straggler)
    others = median(rank.work for rank in one.ranks if rank is not slow)
    often = f"{slow.slowest} of {how_many(len(one.steps), 'step')}"
    if slow.work - others < seconds / 2:
        return f"ranks come to collectives at different times, rank {slow.rank} last in {often}: {cost}."
    return (
        f"rank {slow.rank} takes {show_time(slow.work - others)} longer for its own work than the others "
        f"(the slowest in {often}), and waiting for it costs {cost}."
    )


def negotiation(one: Explanation, seconds: float) -> str:
    """A sentence on gradients that wait while the network is idle."""
    cost = what_it_costs(one, seconds)
    what, or_else = "gradients that are ready", ", or ranks agree too slowly (Horovod)"
    if one.sharded:
        what, or_else = "collectives that could start", ""
    return f"{what} wait while the network is idle, which costs {cost}: the host launches too late{or_else}."


def every_micro_batch(one: Explanation, seconds: float) -> str:
    """A sentence on gradients that are sent in every micro-batch of a step."""
    cost = what_it_costs(one, seconds)
    return f"gradients are sent before the last micro-batch has added to them, which costs {cost}."


def _of_kind(one: Explanation, kind: str, backward: bool) -> str:
    """The number and bytes of the collectives of a kind in words, such as ``4 all-gathers (1.5 MiB)``."""
    rows = [row for row in one.buckets if row.module is not None and (row.kind, row.backward) == (kind, backward)]
    size = sum(row.bytes or 0 for row in rows)
    carried = f" ({show_bytes(size)} from each rank)" if size else ""
    return f"{how_many(len(rows), kind.replace('_', '-'))}{carried}"


def blocking(one: Explanation, seconds: float) -> str:
    """A sentence on a library that blocks the thread that launches a collective."""
    cost = what_it_costs(one, seconds)
    return f"the host waits for each collective as soon as it has launched it, which costs {cost}."


def one_communicator(one: Explanation, seconds: float) -> str:
    """A sentence on all-gathers behind reduce-scatters."""
    cost = what_it_costs(one, seconds)
    return f"in backward all-gathers queue behind reduce-scatters of the same process group, which costs {cost}."


def reduce_scatter_input(one: Explanation, seconds: float) -> str:
    """A sentence on waits for the reduce-scatter in flight."""
    cost = what_it_costs(one, seconds)
    return f"backward waits for the reduce-scatter in flight before it copies the next gradients, which costs {cost}."


def gathered_twice(one: Explanation, seconds: float) -> str:
    """A sentence on parameters that backward gathers again."""
    cost = what_it_costs(one, seconds)
    again = _of_kind(one, "all_gather", True)
    return f"backward gathers parameters again, {again} a step, which costs {cost}."


def first_gather(one: Explanation, seconds: float) -> str:
    """A sentence on the all-gathers before the first block."""
    cost = what_it_costs(one, seconds)
    return f"nothing hides the all-gathers before the first block, which costs {cost}."


def last_reduce_scatter(one: Explanation, seconds: float) -> str:
    """A sentence on the reductions after backward."""
    cost = what_it_costs(one, seconds)
    return f"nothing hides the reductions after the last block of backward, which costs {cost}."


def shared_network(one: Explanation, seconds: float) -> str:
    """A sentence on process groups whose collectives are in flight at the same time."""
    cost = what_it_costs(one, seconds)
    names = list(dict.fromkeys(row.group for row in one.collectives if row.group))
    groups = f"{', '.join(names[:-1])} and {names[-1]}" if 1 < len(names) <= SEVERAL else "several process groups"
    return (
        f"collectives of {groups} are in flight at the same time, so that each gets a part of the "
        f"bandwidth, which costs {cost}."
    )


def find_unused(one: Explanation, seconds: float) -> str:
    """A sentence on buckets sent out of the order of their gradients."""
    cost = what_it_costs(one, seconds)
    mapped = any(used_map(row.kind, row.dtype) for row in one.buckets)
    why = " (a map of used parameters is sent: find_unused_parameters=True without static_graph)" if mapped else ""
    return f"buckets wait for gradients that are ready late{why}, which costs {cost}."


def latency(one: Explanation, seconds: float) -> str:
    """A sentence on start-ups."""
    cost = what_it_costs(one, seconds)
    sizes = [row.bytes for row in one.buckets if row.bytes]
    typical = f", {show_bytes(median(sizes))} in the median," if sizes else ""
    return f"the start-ups of {len(one.buckets)} messages a step{typical} cost {cost}."


def late_bucket(one: Explanation, seconds: float) -> str:
    """A sentence on the most exposed bucket; on all of them if none begins before the last gradient is ready."""
    cost = what_it_costs(one, seconds)
    rows = [row for row in one.buckets if row.gradients] or list(one.buckets)
    last = max(row.ready for row in rows)
    if len(rows) > 1 and min(row.start for row in rows) >= last:
        return (
            f"all {len(rows)} messages begin only when the last gradient is there, {show_time(last)} into the step. "
            f"None hides behind backward, which costs {cost}."
        )
    late = max(rows, key=lambda row: row.exposed)
    size = "" if late.bytes is None else f" ({show_bytes(late.bytes)})"
    which = "the only bucket" if len(rows) == 1 else f"bucket {late.number}"
    all_of_it = sum(row.bytes or 0 for row in rows)
    share = f" with {late.bytes / all_of_it:.0%} of all bytes" if len(rows) > 1 and late.bytes and all_of_it else ""
    return (
        f"{which}{size}{share} is ready only {show_time(late.ready)} into the step and cannot hide behind computation, "
        f"which costs {cost}."
    )


def bandwidth(one: Explanation, seconds: float) -> str:
    """A sentence on bytes that cannot be hidden in any order of sending."""
    cost = what_it_costs(one, seconds)
    if one.sharded:
        return f"bytes that computation is too short to hide cost {cost}."
    sizes = sum(row.bytes or 0 for row in one.buckets)
    carried = [(row.bandwidth, row.bytes) for row in one.buckets if row.bandwidth and row.bytes]
    if not carried:
        return (
            f"communication that no order of sending could hide costs {cost}; without the sizes of messages start-ups "
            "are part of it."
        )
    rate = sum(size for _, size in carried) / plain_sum(size / speed for speed, size in carried)
    said = f" at a bus bandwidth of {show_bus_rate(rate)}"
    least = "at least " if any(row.bytes is None for row in one.buckets) else ""
    return f"{least}{show_bytes(sizes)} a step{said} cannot all be hidden in any order, which costs {cost}."


def network_or_rank(one: Explanation) -> str:
    """A caveat before a sentence on the network, if waits for a slower rank cannot be told from transfer."""
    traces = "the trace of one rank does not tell which: give those of all"
    if len(one.ranks) > 1:
        traces = "these traces do not tell which"
    return f"The network or a slower rank: {traces}. As far as it is the network:"


def host(one: Explanation, seconds: float) -> str:
    """A sentence on a device that is idle for no known reason."""
    cost = what_it_costs(one, seconds)
    return (
        f"the device has nothing to do and waits for nothing that the trace shows, which costs {cost}: "
        "Python, launches or synchronisation."
    )


def compute_bound(one: Explanation, part: float, cause: str) -> str:
    """A sentence on a job without a cause that is worth a search, given the costliest one and its part of the step."""
    return (
        f"Compute-bound, nothing to gain: computation is {what_it_costs(one, one.left)}, and no other cause costs more "
        f"than {part:.1%} ({cause})."
    )
