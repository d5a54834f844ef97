"""What limits a job, in a sentence; what its trace does not tell, in one each."""

from __future__ import annotations

from statistics import median

from osfmodel.diagnosis.findings import Explanation
from osfmodel.units import show_bytes, show_time


def verdict(one: Explanation) -> str:
    """A sentence on the cause that costs most, then one on the straggler or the network where that is the other."""
    others = [] if one.straggler is None or one.cause == "imbalance" else ["imbalance"]
    others += [one.network] if one.network is not None and one.cause in ("imbalance", "input", "host") else []
    return " ".join(_sentence(one, cause) for cause in (one.cause, *others))


def _sentence(one: Explanation, cause: str) -> str:
    cost = f"{show_time(one.gains[cause])} of a step of {show_time(one.step_time)} ({one.part(cause):.0%})"
    sentences = {
        "input": _input,
        "imbalance": _imbalance,
        "negotiation": _negotiation,
        "find_unused": _find_unused,
        "latency": _latency,
        "late-bucket": _late_bucket,
        "bandwidth": _bandwidth,
        "host": _host,
        "compute": _compute,
    }
    return sentences[cause](one, cost)


def _input(one: Explanation, cost: str) -> str:
    slowest = max(one.ranks, key=lambda rank: rank.parts.input)
    least = min(rank.parts.input for rank in one.ranks)
    where = f", most on rank {slowest.rank}" if slowest.parts.input > 2 * least and len(one.ranks) > 1 else ""
    return f"Input-bound: waiting for the data loader costs {cost}{where}."


def _imbalance(one: Explanation, cost: str) -> str:
    slow = next(rank for rank in one.ranks if rank.rank == one.straggler)
    others = median(rank.work for rank in one.ranks if rank is not slow)
    often = f"{slow.slowest} of {len(one.steps)} steps"
    if slow.work - others < one.gains["imbalance"] / 2:
        return f"Imbalance: ranks come to collectives at different times, rank {slow.rank} last in {often}: {cost}."
    return (
        f"Imbalance: rank {slow.rank} takes {show_time(slow.work - others)} longer for its own work than the others "
        f"(the slowest in {often}), and waiting for it costs {cost}."
    )


def _negotiation(one: Explanation, cost: str) -> str:
    return (
        f"Negotiation: gradients that are there wait to be sent while the wires are idle, which costs {cost}: ranks "
        "agree too slowly, or the host launches too late."
    )


def _find_unused(one: Explanation, cost: str) -> str:
    mapped = any(row.kind == "all_reduce" and not row.gradients for row in one.buckets)
    why = " (a map of used parameters is sent: find_unused_parameters=True without static_graph)" if mapped else ""
    return f"Buckets out of order{why}: buckets wait for gradients that are ready late, which costs {cost}."


def _latency(one: Explanation, cost: str) -> str:
    sizes = [row.bytes for row in one.buckets if row.bytes]
    typical = f", {show_bytes(median(sizes))} in the median," if sizes else ""
    return f"Latency: the start-ups of {len(one.buckets)} messages a step{typical} cost {cost}."


def _late_bucket(one: Explanation, cost: str) -> str:
    rows = [row for row in one.buckets if row.gradients] or list(one.buckets)
    late = max(rows, key=lambda row: row.exposed)
    size = "" if late.bytes is None else f" ({show_bytes(late.bytes)})"
    all_of_it = sum(row.bytes or 0 for row in rows)
    share = f" with {late.bytes / all_of_it:.0%} of all bytes" if late.bytes and all_of_it else ""
    return (
        f"Late bucket: bucket {late.number}{size}{share} can be sent only {show_time(late.ready)} into the step and "
        f"cannot hide behind computation, which costs {cost}."
    )


def _bandwidth(one: Explanation, cost: str) -> str:
    sizes = sum(row.bytes or 0 for row in one.buckets)
    carried = [(row.bandwidth, row.bytes) for row in one.buckets if row.bandwidth and row.bytes]
    if not carried:
        return (
            f"Network: communication that no order of sending could hide costs {cost}; without the sizes of messages "
            "start-ups are not told from bytes."
        )
    rate = sum(size for _, size in carried) / sum(size / speed for speed, size in carried)
    said = f" at a bus bandwidth of {show_bytes(rate)}/s"
    return f"Bandwidth: {show_bytes(sizes)} a step{said} cannot all be hidden in any order, which costs {cost}."


def _host(one: Explanation, cost: str) -> str:
    return (
        f"Host-bound: the device has nothing to do and waits for nothing that the trace shows, which costs {cost}: "
        "Python, launches or synchronisation."
    )


def _compute(one: Explanation, cost: str) -> str:
    rest = {cause: gain for cause, gain in one.gains.items() if cause != "compute"}
    largest = max(rest, key=rest.__getitem__)
    return (
        f"Compute-bound, nothing to gain: computation is {cost}, and no other cause costs more than "
        f"{one.part(largest):.1%} ({largest})."
    )
