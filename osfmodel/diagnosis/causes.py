"""What each cause costs: the step is replayed with one cause after the other taken away.

The step as traced is replayed (:mod:`osfmodel.diagnosis.replay`); then causes are taken away one after the other, in
the order of CAUSES, and what the replay becomes shorter by is the gain of that cause. So the gains and the computation
that is left add up to the replayed step. What can be mended by settings comes before what takes other hardware: a
bucket that could have been hidden is not held against the network, and ``bandwidth`` is only what no plan could hide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from osfmodel.diagnosis.messages import Key, used_map
from osfmodel.diagnosis.parts import input_waits, without
from osfmodel.diagnosis.replay import Seen, alone, flowing, median_rank, messages, scene
from osfmodel.trace import Interval

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "input": "no rank waits for its data loader",
        "imbalance": "every rank does its own work as fast as the median rank",
        "negotiation": "a collective starts as soon as its gradients are there and the wires are free",
        "find_unused": "buckets are formed in the order in which gradients become ready, and no map of used parameters "
        "is sent",
        "latency": "a message costs its bytes only, no start-up",
        "late-bucket": "every gradient is sent by itself as soon as it is there, at the same time per byte",
        "bandwidth": "bytes cost nothing either",
        "host": "the device is never idle for reasons that the trace does not show",
        "compute": "what is left: the device computes or copies",
    }
)
"""Each with what holds once it is taken away, in this order, beside all before it."""
NETWORK = ("negotiation", "find_unused", "latency", "late-bucket", "bandwidth")
"""Causes that have to do with communication, not with a rank."""
Startup = Callable[[int], float]
"""Seconds of start-up of a message of so many bytes."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Of one step: by cause, the seconds that it costs; ``replayed``: seconds of the replay with all of them in it."""

    replayed: float
    seconds: Mapping[str, float]


def gains_of(ranks: Sequence[Seen], startup: Startup) -> Gains:
    """What each of CAUSES costs in one step, seen on ``ranks``. With a single rank imbalance is not known: 0."""
    times = _times(ranks, startup)
    order = list(CAUSES)
    left = [*times, 0.0]
    gains = {cause: max(0.0, left[place] - left[place + 1]) for place, cause in enumerate(order)}
    return Gains(times[0], gains)


def _times(ranks: Sequence[Seen], startup: Startup) -> list[float]:
    """The replay with the first 0, 1, 2 ... causes taken away, but for the last. None is longer than the one before."""
    usual = median_rank(ranks, input_waits)
    inputs = input_waits(usual.step)
    whole = dict(messages(ranks))
    sizes = {one.key: one.collective.bytes or 0 for one in usual.sent}
    maps = {one.key for one in usual.sent if used_map(one.collective)}

    def bare(key: Key, seconds: float) -> float:
        return 0.0 if key in maps else max(0.0, seconds - startup(sizes[key]))

    bytes_only = {key: bare(key, whole[key]) for key in sizes}
    even = alone(usual, whole, inputs)
    ordered = alone(usual, whole, inputs, ordered=True).prompt()
    found = [
        scene(ranks, lambda step: ()).duration,
        scene(ranks, input_waits).duration,
        even.duration,
        even.prompt().duration,
        ordered.timed(lambda key, seconds: 0.0 if key in maps else seconds).duration,
        ordered.timed(bare).duration,
        flowing(usual, bytes_only, inputs).duration,
        usual.clock(inputs).at(usual.step.end),
        usual.clock([*inputs, *_idle(usual)]).at(usual.step.end),
    ]
    if len(ranks) == 1:
        found[2] = found[1]
    for place in range(1, len(found)):
        found[place] = min(found[place], found[place - 1])
    return found


def _idle(rank: Seen) -> tuple[Interval, ...]:
    """When it did nothing, and nothing in the trace says why."""
    step = rank.step
    waited = [(wait.start, wait.end) for wait in rank.waits]
    return without([(step.start, step.end)], [*step.compute, *step.copies, *step.inputs, *waited])
