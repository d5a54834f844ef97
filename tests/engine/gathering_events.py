"""Steps with all-gathers one ahead of forward as equations, to test the lowering by; all in exact fractions.

Each function below is the end of an operation, from the ends of all that it waits for. Buckets are in the order of
reduce-scatters; ``order`` has them in the order of all-gathers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from osfmodel import Block, Bucket, Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.entities.effects import Effects

COPY_IN, COPY_OUT = Fraction(1, 900), Fraction(1, 700)
GATHER, SCATTER = Fraction(1, 50), Fraction(1, 40)
LAYERS = (
    Layer("a", 1, 2, 100, activation_bytes=1000, peak_bytes=4000),
    Layer("b", 1, 2, 200, activation_bytes=1000, peak_bytes=4000),
    Layer("c", 1, 2, 400, activation_bytes=1000, peak_bytes=4000),
)
STEP = Workload("step", LAYERS, 8, 1, state_bytes=701, update_bytes=50, fixed_bytes=7)
BUCKETS = (Bucket((Block("c", 0, 400), Block("b", 0, 200))), Bucket((Block("a", 0, 100),)))


@dataclass
class Step:
    """Seconds by layer in forward order, and by bucket; ``members``: the layers of each bucket."""

    forward: list
    backward: list
    members: list
    gather: list
    scatter: list
    update: list
    rest: Fraction = Fraction(0)
    batches: int = 1

    @property
    def order(self):
        return sorted(range(len(self.members)), key=lambda bucket: min(self.members[bucket]))

    def first(self, place):
        return min(self.members[self.order[place]])


def distributed_end(step):
    """End of a step from update to update, whose buckets have no update of their own."""
    layers, order = len(step.forward), step.order

    @cache
    def gathered(place):
        """An all-gather is issued where forward waits for the one before it."""
        before = max(gathered(place - 1), forward(step.first(place - 1) - 1)) if place else 0
        return before + step.gather[order[place]]

    @cache
    def forward(layer, batch=0):
        if layer < 0:
            return backward(0, batch - 1) if batch else Fraction(0)
        own = [gathered(place) for place in range(len(order)) if step.first(place) == layer and batch == 0]
        return max([forward(layer - 1, batch), *own]) + step.forward[layer]

    @cache
    def backward(layer, batch):
        before = forward(layers - 1, batch) if layer == layers - 1 else backward(layer + 1, batch)
        return before + step.backward[layer]

    @cache
    def scattered(bucket):
        ready = [backward(layer, step.batches - 1) for layer in step.members[bucket]]
        return max([scattered(bucket - 1) if bucket else gathered(len(order) - 1), *ready]) + step.scatter[bucket]

    ends = [backward(0, step.batches - 1), *map(scattered, range(len(order)))]
    return max(ends) + step.rest


def decoupled_end(step):
    """End of a step from backward to backward; each bucket is updated before its forward."""
    layers, order = len(step.forward), step.order

    @cache
    def backward(layer):
        return step.backward[layer] + (backward(layer + 1) if layer + 1 < layers else 0)

    @cache
    def scattered(bucket):
        ready = [backward(layer) for layer in step.members[bucket]]
        return max([scattered(bucket - 1) if bucket else 0, *ready]) + step.scatter[bucket]

    stepped = max([backward(0), *map(scattered, range(len(order)))])

    @cache
    def reached(place):
        """The point in forward where compute waits for an all-gather."""
        if place and step.first(place) == step.first(place - 1):
            return updated(place - 1)
        return forward(step.first(place) - 1)

    @cache
    def gathered(place):
        before = max(gathered(place - 1), reached(place - 1)) if place else stepped
        return before + step.gather[order[place]]

    @cache
    def updated(place):
        return max(reached(place), gathered(place)) + step.update[order[place]]

    @cache
    def forward(layer):
        if layer < 0:
            return stepped
        own = [updated(place) for place in range(len(order)) if step.first(place) == layer]
        return max([forward(layer - 1), *own]) + step.forward[layer]

    return forward(layers - 1)


def prices(workers):
    """Prices of collectives, none of whose time is on a link, and of copies."""
    slopes = {"all_gather": GATHER, "reduce_scatter": SCATTER}
    costs = {kind: AffineCost(((Fraction(1), slope),)) for kind, slope in slopes.items()}
    return Pricing(costs, workers, effects=Effects(copy_in=COPY_IN, copy_out=COPY_OUT), startups=costs)


def fraction(source, most):
    return Fraction(source.randint(0, 12 * most), 12)


def drawn_workload(source, dtype):
    """A workload at random, some of whose layers have no parameters."""
    element = 4 if dtype == "float32" else 2
    sizes = [source.choice((0, 1, 1, 1)) * source.randint(1, 400) * element for _ in range(source.randint(1, 8))]
    sizes[source.randrange(len(sizes))] = 64 * element
    layers = [
        Layer(f"l{place}", fraction(source, 6), fraction(source, 9), size, dtype) for place, size in enumerate(sizes)
    ]
    return Workload("step", tuple(layers), update_time=fraction(source, 9))


def drawn_buckets(source, workload, cuts):
    """Buckets at random: runs of tensors in ready order, or any sets; with ``cuts``, also of parts of tensors."""
    element, blocks = 4 if workload.layers[0].dtype == "float32" else 2, []
    for layer in reversed([layer for layer in workload.layers if layer.gradient_bytes]):
        cut = source.randint(0, layer.gradient_bytes // element - 1) * element if cuts and source.random() < 0.3 else 0
        blocks += [Block(layer.name, 0, cut)] if cut else []
        blocks.append(Block(layer.name, cut, layer.gradient_bytes - cut))
    numbers = [source.randrange(4) for _ in blocks]
    if source.random() < 0.7:
        numbers.sort()
    return tuple(
        Bucket(tuple(block for block, own in zip(blocks, numbers, strict=True) if own == number))
        for number in dict.fromkeys(numbers)
    )


def members(workload, buckets):
    """Places of the layers of each bucket."""
    places = {layer.name: place for place, layer in enumerate(workload.layers)}
    return [[places[block.layer] for block in bucket.blocks] for bucket in buckets]
