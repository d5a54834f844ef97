"""The programme of what to keep against every choice there is, and its bound against every plan that fits."""

from __future__ import annotations

from itertools import chain, combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from osfmodel import Effects, Layer, Segment, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.entities.plan import Bucket, Plan, contiguous_plan
from osfmodel.solve import Status
from osfmodel.solve.retention import CLOSE, Room, choose
from tests.draws import examples

WORKERS = 4
ALWAYS = 10
"""Bytes of buffers, in every case."""
FAR = 10**9
"""Bytes in which everything fits."""


def subsets(things):
    things = list(things)
    return chain.from_iterable(combinations(things, count) for count in range(len(things) + 1))


@st.composite
def steps(draw):
    """Up to five layers, of which some have gradients, cut into up to three segments."""
    count = draw(st.integers(1, 5))
    layers, below = [], 0
    for i in range(count):
        kept = draw(st.integers(0, 40))
        below += kept
        size = 4 * draw(st.integers(0, 30)) if i else 4 * draw(st.integers(1, 30))
        times = draw(st.integers(1, 8)), draw(st.integers(1, 8))
        layers.append(Layer(f"l{i}", *times, size, activation_bytes=kept, peak_bytes=below + draw(st.integers(0, 20))))
    bounds = sorted({0, count, *draw(st.sets(st.integers(0, count), max_size=2))})
    segments = tuple(
        Segment(f"s{i}", f"l{i}", f"l{j - 1}", (sum(layer.activation_bytes for layer in layers[i:j]) * 3) // 4)
        for i, j in pairwise(bounds)
    )
    facts = {"state_bytes": 0, "update_bytes": draw(st.integers(0, 300)), "fixed_bytes": ALWAYS}
    return Workload("w", tuple(layers), 1, draw(st.integers(0, 5)), segments=segments, **facts)


pricings = st.builds(
    lambda startup, per_byte, select: Pricing.of(
        AffineCost(((startup, per_byte),)),
        Effects(select=select, select_sent=select / 2, select_time=select, spread_received=select),
        WORKERS,
    ),
    st.integers(0, 5),
    st.sampled_from([0.01, 0.1, 0.5]),
    st.sampled_from([0.0, 0.02, 0.5]),
)


def least_time(workload, pricing, again, sparse, release, density):
    """The rows of the programme, each by itself, in the words of its docstring."""
    effects = pricing.effects
    forward = {
        s.name: sum(layer.forward_time for layer in workload.layers[workload.span(s.name)]) for s in workload.segments
    }
    sizes = dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True))
    gathered = {name: WORKERS * 8 * max(1, -(-size * density // 4)) for name, size in sizes.items()} if density else {}
    sent = {name: some // WORKERS for name, some in gathered.items()}
    select = {n: effects.select * sizes[n] + effects.select_sent * sent[n] + effects.select_time for n in sparse}
    total = workload.compute_time + sum(forward[name] for name in again) + sum(select.values())
    total += sum(
        effects.spread * sizes[n] + effects.spread_received * gathered[n] + effects.spread_time for n in sparse
    )
    if not sizes:
        return total
    startup, per_byte = pricing.cost().pieces[0]
    most = sum(gathered.values())
    rate = pricing.cost("all_gather")(most) / most if density else 0
    ready, elapsed = {}, workload.forward_time
    for place, layer in reversed(list(enumerate(workload.layers))):
        elapsed += layer.backward_time + sum(forward[n] for n in again if workload.span(n).stop - 1 == place)
        elapsed += select.get(layer.name, 0)
        ready[layer.name] = elapsed
    names = workload.gradients.names
    for i, name in enumerate(names):
        sent = sum(rate * gathered[n] if n in sparse else per_byte * sizes[n] for n in names[i:])
        start = 0 if density else startup
        total = max(total, ready[name] + start + sent + (0 if release else workload.update_time))
    return total


def keeps(workload, again, sparse, release):
    """The least bytes of each backward and of the update."""
    sizes = dict(zip(workload.gradients.names, workload.gradients.sizes, strict=True))
    homes = 0 if release else sum(sizes.values())
    state = sum(sizes[name] for name in sparse) if release else 0
    highest = 0
    for place, layer in enumerate(workload.layers):
        gone = sum(s.kept_bytes for s in workload.segments if s.name in again and workload.span(s.name).stop <= place)
        highest = max(highest, ALWAYS + homes + state + layer.peak_bytes - gone)
    largest, whole = max(sizes.values(), default=0), workload.update_bytes
    if release and whole > 2 * largest and largest:  # all at once: a bucket's part of it
        whole = round(whole * largest / sum(sizes.values()))
    return max(highest, ALWAYS + homes + sum(sizes[name] for name in sparse) + whole)


@settings(max_examples=examples(20))
@given(steps(), pricings, st.integers(1, 400), st.booleans(), st.sampled_from([None, 0.1, 0.5]))
def test_the_choice_is_the_best_of_all(workload, pricing, limit, release, density):
    values = [
        least_time(workload, pricing, again, sparse, release, density)
        for again in subsets(segment.name for segment in workload.segments)
        for sparse in (subsets(workload.gradients.names) if density else [()])
        if keeps(workload, again, sparse, release) <= limit
    ]
    found = choose(workload, pricing, Room(limit, ALWAYS, release, density))
    if not values:
        assert found.status is Status.INFEASIBLE
        return
    assert found.status is Status.OPTIMAL
    assert found.bound <= min(values) * (1 + 1e-9)
    assert least_time(workload, pricing, found.recompute, found.sparse, release, density) <= min(values) * (1 + CLOSE)
    assert found.bound >= min(values) * (1 - CLOSE) - 1e-5
    assert keeps(workload, found.recompute, found.sparse, release) <= limit * (1 + 1e-6)


@settings(max_examples=examples(12))
@given(steps(), pricings, st.integers(50, 600), st.booleans(), st.sampled_from([None, 0.1]))
def test_no_plan_that_fits_beats_the_bound(workload, pricing, limit, release, density):
    assume(len(workload.gradients))
    weights = workload.gradient_bytes
    room = Room(limit, weights + ALWAYS, release, density)
    bound = choose(workload, pricing, room).bound
    ends = [(*cuts, len(workload.gradients)) for cuts in subsets(range(1, len(workload.gradients)))]
    for again in subsets(segment.name for segment in workload.segments):
        for some in ends:
            for sent in densities(some, density):
                plan = contiguous_plan(workload, some)
                buckets = tuple(Bucket(b.blocks, density=part) for b, part in zip(plan.buckets, sent, strict=True))
                plan = Plan(workload.name, buckets, recompute=again, release=release)
                timeline = predict_timeline(workload, plan, pricing)
                if memory_of(workload, plan, timeline, WORKERS).peak.bytes <= limit:
                    assert timeline.iteration_time >= bound * (1 - 1e-9)


def densities(ends, density):
    """Densities by bucket: none, all, and every second one."""
    if density is None:
        return [[None] * len(ends)]
    return [[None] * len(ends), [density] * len(ends), [density if i % 2 else None for i in range(len(ends))]]


def test_the_comparison_can_fail():
    """Short of memory a segment of 1 s is computed again; who leaves that out of the time is found out."""
    layers = (
        Layer("a", 1, 2, 40, activation_bytes=40, peak_bytes=40),
        Layer("b", 4, 2, 40, activation_bytes=0, peak_bytes=60),
    )
    workload = Workload("w", layers, 1, segments=(Segment("s", "a", "a", 30),), state_bytes=0)
    pricing = Pricing.of(AffineCost(((1, 0.01),)), workers=WORKERS)
    enough, short = (choose(workload, pricing, Room(limit, 0, True)) for limit in (FAR, 50))
    assert enough.recompute == ()
    assert short.recompute == ("s",)
    assert short.bound == pytest.approx(least_time(workload, pricing, ("s",), (), True, None))
    assert short.bound != pytest.approx(least_time(workload, pricing, (), (), True, None))
    assert choose(workload, pricing, Room(20, 0, True)).status is Status.INFEASIBLE
