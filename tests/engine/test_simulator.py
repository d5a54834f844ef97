"""The simulator against the recursion and against a second simulator, in exact rational arithmetic."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import osfmodel.engine.simulator
from osfmodel import Effects, Layer, Plan, Workload, engine
from osfmodel.cost import AffineCost, TableCost
from osfmodel.cost.pricing import Pricing, together
from osfmodel.engine import simulate
from osfmodel.engine.recursion import predict_timeline
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.errors import OsfError
from osfmodel.entities.plan import Block, Bucket, one_by_one
from osfmodel.entities.savings import Segment
from osfmodel.solve.bounds import plan_bound
from tests.draws import examples
from tests.engine import events

DENSITIES = [None, 0.25, 0.5, 1.0]
small = st.integers(0, 6).map(Fraction)
thirds = st.integers(0, 12).map(lambda n: Fraction(n, 3))
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
ELSEWHERE = ("negotiation", "negotiation_miss", "group_stall", "tensor_time", "node_slowdown")
"""Effects of Horovod's loop, a fraction that only FSDP2 has, and those that ``Pricing.loaded`` moves into the workload
(test_slowed_bound.py)."""
DRAWN_EFFECTS = [name for name in Effects.__slots__ if name not in ELSEWHERE]
DRAWN_EFFECTS.remove("straggler_deviation")


@st.composite
def workloads(draw, most=4):
    rows = draw(st.lists(st.tuples(thirds, thirds, st.integers(0, 9)), min_size=1, max_size=most))
    layers = [Layer(f"l{i}", ahead, back, size) for i, (ahead, back, size) in enumerate(rows)]
    layers.append(Layer("last", draw(thirds), draw(thirds), draw(st.integers(1, 9))))
    return Workload("w", tuple(layers), update_time=draw(st.sampled_from([Fraction(0), Fraction(1, 2)])) + 1)


@st.composite
def buckets(draw, workload):
    """Tensors cut anywhere, pieces grouped in any way, in any order; now and then in ready order."""
    pieces = []
    for name, size in zip(workload.gradients.names, workload.gradients.sizes, strict=True):
        cuts = sorted({0, size} | draw(st.sets(st.integers(0, size), max_size=2)))
        pieces += [Block(name, low, high - low) for low, high in itertools.pairwise(cuts)]
    if draw(st.booleans()):
        pieces = draw(st.permutations(pieces))
    ends = sorted({len(pieces)} | draw(st.sets(st.integers(1, len(pieces)), max_size=4)))
    late = st.sampled_from([0, 0, 0, 3, 9])
    return tuple(Bucket(tuple(pieces[start:end]), draw(late)) for start, end in itertools.pairwise([0, *ends]))


@st.composite
def costs(draw):
    if draw(st.integers(0, 4)) == 0:
        return TableCost((2, 5, 11), tuple(draw(small) + Fraction(1, 7) for _ in range(3)), Fraction(1, 4))
    return AffineCost(tuple((draw(thirds), draw(small) / 4) for _ in range(draw(st.integers(1, 2)))))


@st.composite
def pricings(draw):
    values = {name: draw(small) / draw(st.sampled_from([1, 4, 7])) * draw(st.integers(0, 1)) for name in DRAWN_EFFECTS}
    gain = draw(st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(7, 3)]))
    costs_ = {kind: draw(costs()) for kind in COLLECTIVES}
    return Pricing(costs_, workers=draw(st.sampled_from([1, 2, 5])), gain=gain, effects=Effects(**values))


@st.composite
def in_order(draw):
    workload = draw(workloads(6))
    return workload, Plan("w", draw(buckets(workload))), draw(pricings())


@st.composite
def cases(draw):
    workload = draw(workloads())
    plan = Plan(
        "w",
        draw(buckets(workload)),
        channels=draw(st.integers(1, 3)),
        forward_overlap=draw(st.booleans()),
        strategy=draw(st.sampled_from(["replicated", "split"])),
        credit=draw(st.sampled_from([None, 1, 6, 1000])),
    )
    return workload, plan, draw(pricings())


@st.composite
def beyond_dense(draw):
    """Sparse buckets, dense ones, release, recomputation and mirror weights, with several channels and all effects."""
    workload = draw(workloads())
    names = [layer.name for layer in workload.layers]
    ends = sorted(draw(st.sets(st.integers(0, len(names)), min_size=2, max_size=3)))
    segments = tuple(Segment(f"s{low}", names[low], names[high - 1], 1) for low, high in itertools.pairwise(ends))
    workload = replace(workload, segments=segments)
    whole = [
        Block(name, 0, size) for name, size in zip(workload.gradients.names, workload.gradients.sizes, strict=True)
    ]
    if draw(st.booleans()):
        whole = draw(st.permutations(whole))
    ends = sorted({len(whole)} | draw(st.sets(st.integers(1, len(whole)), max_size=4)))
    found = tuple(
        Bucket(tuple(whole[start:end]), draw(st.sampled_from([0, 0, 0, 3])), draw(st.sampled_from(DENSITIES)))
        for start, end in itertools.pairwise([0, *ends])
    )
    sparse = any(bucket.density is not None for bucket in found)
    release = draw(st.booleans())
    plan = Plan(
        "w",
        found,
        channels=draw(st.integers(1, 2)),
        strategy="replicated" if sparse or release else draw(st.sampled_from(["replicated", "split"])),
        credit=None if sparse else draw(st.sampled_from([None, 6])),
        recompute=tuple(one.name for one in segments if draw(st.booleans())),
        release=release,
        mirror=sparse and draw(st.booleans()),
    )
    return workload, plan, draw(pricings())


def spans_of(timeline):
    """(kind, start, end) of everything that takes time, in order of time."""
    return sorted((span.kind, span.start, span.end) for span in timeline.spans if span.end > span.start)


@settings(max_examples=examples(30))
@given(in_order())
def test_equals_the_recursion(case):
    """One channel, a barrier, static order: cut tensors, any order of buckets, release times, all effects."""
    workload, plan, pricing = case
    closed = predict_timeline(workload, plan, pricing.cost(), pricing.effects)
    found = simulate(workload, plan, pricing)
    assert found.iteration_time == closed.iteration_time
    assert isinstance(found.iteration_time, Fraction)
    assert spans_of(found) == spans_of(closed)


@pytest.mark.parametrize("effects", [{}, {"copy_in": 0.25, "hook_time": 0.5}], ids=["alone", "with copies and hooks"])
def test_stragglers_stretch_backward_also_where_its_last_layer_has_no_gradient(effects):
    layers = (Layer("input", 1.0, 6.0, 0), Layer("a", 1.0, 2.0, 4), Layer("b", 1.0, 2.0, 4))
    workload, cost = Workload("w", layers, update_time=1.0), AffineCost(((0.5, 0.0),))
    plan, drawn = one_by_one(workload), Effects(straggler_deviation=0.25, **effects)
    closed = predict_timeline(workload, plan, cost, drawn, 5)
    assert closed.iteration_time == pytest.approx(simulate(workload, plan, Pricing.of(cost, drawn, 5)).iteration_time)
    added = sum(effects.values()) * 2 + (0.25 * 6 if effects else 0)
    assert closed.iteration_time == pytest.approx(13 * drawn.stretch(5) + added + 1)


@settings(max_examples=examples(30))
@given(cases())
def test_equals_a_second_simulator(case):
    """Channels, gain, cut tensors, overlap with the next forward, split, priority, effects: no tolerance."""
    workload, plan, pricing = case
    ends, spans = events.simulate(workload, plan, pricing)
    found = simulate(workload, plan, pricing)
    assert found.iteration_time == ends[-1]
    assert spans_of(found) == sorted((kind, start, end) for kind, _, start, end in spans if end > start)


@settings(max_examples=examples(30))
@given(beyond_dense())
def test_equals_it_with_sparse_buckets_release_and_recomputation(case):
    workload, plan, pricing = case
    ends, spans = events.simulate(workload, plan, pricing)
    found = engine.predict_timeline(workload, plan, pricing)
    assert found.iteration_time == ends[-1]
    assert spans_of(found) == sorted((kind, start, end) for kind, _, start, end in spans if end > start)
    assert isinstance(found.iteration_time, Fraction)
    assert found.iteration_time >= plan_bound(workload, plan, pricing)


@settings(max_examples=examples(18))
@given(cases())
def test_the_second_period_is_like_the_first(case):
    """Steady state: three periods in a row on one clock take the same time each, and all spans come again."""
    workload, plan, pricing = case
    ends, spans = events.simulate(workload, plan, pricing, periods=3)
    assert [end - start for start, end in itertools.pairwise([0, *ends])] == [ends[0]] * 3
    periods = [
        sorted((kind, key[0], key[2], start - base, end - base) for kind, key, start, end in spans if key[1] == number)
        for number, base in enumerate([0, *ends[:2]])
    ]
    assert periods[0] == periods[1] == periods[2]
    assert simulate(workload, plan, pricing).iteration_time == ends[0]


def bytes_moved(span, spans, pricing, size):
    """Bytes that a collective of that span sends: its rate, read off how many others send, integrated."""
    _, transfer = pricing.split(span.kind, size)
    begins = {other: other.start + latency_of(other, pricing) for other in spans}
    marks = sorted({time for other in spans for time in (begins[other], other.end)} | {begins[span], span.end})
    sent = Fraction(0)
    for low, high in itertools.pairwise(marks):
        if begins[span] <= low and high <= span.end:
            flows = sum(begins[other] <= low and high <= other.end for other in spans)
            sent += (high - low) * Fraction(together(pricing.gain, flows)) / flows * size / transfer
    return sent


def latency_of(span, pricing):
    return pricing.cost(span.kind).pieces[0][0]


@st.composite
def plain_cases(draw):
    """One line as a price and no effects, so that start-ups and sizes can be read off the spans."""
    workload, plan, pricing = draw(cases())
    line = AffineCost(((draw(thirds), draw(small) / 4 + Fraction(1, 5)),))
    buckets = tuple(replace(bucket, release_time=0) for bucket in plan.buckets)
    pricing = Pricing(dict.fromkeys(COLLECTIVES, line), gain=pricing.gain)
    return workload, replace(plan, buckets=buckets), pricing


@settings(max_examples=examples(30))
@given(plain_cases())
def test_every_byte_is_sent_after_it_is_ready_on_a_free_channel(case):
    workload, plan, pricing = case
    spans = simulate(workload, plan, pricing).spans
    sending = [span for span in spans if span.stream != "compute"]
    last = {span.layers[0]: span.end for span in spans if span.kind == "backward"}
    firsts = [span for span in sending if span.kind != "all_gather"]
    assert all(span.start >= max(last[layer] for layer in span.layers) for span in firsts)
    assert len(firsts) == len(plan.buckets)
    assert len(sending) == len(firsts) * (2 if plan.split else 1)
    # Bytes: spans are matched with buckets by integrating the rate of each.
    moved = sorted(bytes_moved(span, sending, pricing, 1) for span in firsts)
    assert moved == sorted(Fraction(bucket.size) for bucket in plan.buckets)
    assert sum(moved) == workload.gradient_bytes
    for span in sending:
        beside = [other for other in sending if other.start <= span.start < other.end]
        assert len(beside) <= plan.channels
        assert len({other.stream for other in beside}) == len(beside)


@settings(max_examples=examples(30))
@given(plain_cases())
def test_what_waits_for_what(case):
    """Static order is kept; a gather follows its scatter; a layer's forward follows its own gradient and its update."""
    workload, plan, pricing = case
    timeline = simulate(workload, plan, pricing)
    sending = [span for span in timeline.spans if span.stream != "compute"]
    expected = [tuple(dict.fromkeys(block.layer for block in bucket.blocks)) for bucket in plan.buckets]
    firsts = sorted(span.start for span in sending if span.kind != "all_gather")
    if plan.credit is None:
        started = [span for span in sending if span.kind != "all_gather"]
        for before, after in itertools.combinations(range(len(expected)), 2):
            earliest = min(span.start for span in started if span.layers == expected[before])
            latest = max(span.start for span in started if span.layers == expected[after])
            assert earliest <= latest
    for gather in (span for span in sending if span.kind == "all_gather"):
        assert gather.start >= min(span.end for span in sending if span.layers == gather.layers)
        assert gather.start >= firsts[0]
    if plan.forward_overlap:
        wanted = "all_gather" if plan.split else "all_reduce"
        for span in timeline.spans:
            if span.kind in ("forward", "update"):
                own = [other.end for other in sending if other.kind == wanted and span.layers[0] in other.layers]
                assert span.start >= max(own, default=0)
        updated = {span.layers[0]: span.end for span in timeline.spans if span.kind == "update"}
        forward = {span.layers[0]: span.start for span in timeline.spans if span.kind == "forward"}
        assert all(forward[name] >= end for name, end in updated.items())
    assert timeline.iteration_time == max(span.end for span in timeline.spans)
    assert timeline.iteration_time >= timeline.compute_time


@settings(max_examples=examples(15))
@given(cases())
def test_the_same_twice(case):
    assert simulate(*case) == simulate(*case)


TWO = Workload("w", (Layer("a", Fraction(1), Fraction(4), 8), Layer("b", Fraction(2), Fraction(4), 4)))
APART = (Bucket((Block("b", 0, 4),)), Bucket((Block("a", 0, 8),)))


def priced(startup, per_byte, gain=1, **effects):
    line = AffineCost(((Fraction(startup), Fraction(per_byte)),))
    return Pricing(dict.fromkeys(COLLECTIVES, line), gain=Fraction(gain), effects=Effects(**effects))


def test_by_hand_two_at_once():
    """b is ready at 7 and sends from 8; a is ready at 11 and sends from 12: both go at 3/4 of their speed then."""
    found = simulate(TWO, Plan("w", APART, channels=2), priced(1, 2, Fraction(2)))
    # b: 8 s of transfer, 4 of them alone by 12, then 4 / (3/4) more; a: 4 s of 16 beside it, then alone.
    b, a = found.communication
    assert (b.start, b.end) == (7, 12 + Fraction(16, 3))
    assert (a.start, a.end) == (11, 12 + Fraction(16, 3) + 12)
    assert found.iteration_time == a.end


def test_by_hand_the_next_forward_overlaps():
    """Backward is 0..8, b is ready at 4 and arrives at 13; a then needs till 30, its forward till 31, b's till 33."""
    found = simulate(TWO, Plan("w", APART, forward_overlap=True), priced(1, 2))
    assert found.iteration_time == 13 + 17 + 1 + 2
    first = Plan("w", tuple(reversed(APART)), forward_overlap=True)
    assert simulate(TWO, first, priced(1, 2)).iteration_time == 8 + 17 + 9 + 2


def test_by_hand_split_and_credit():
    """Scatters of 9 and 17 s from 7, gathers in the order of the forward: a's 17 s, then b's 9."""
    found = simulate(TWO, Plan("w", APART, strategy="split"), priced(1, 2))
    assert [span.end for span in found.communication] == [16, 33, 50, 59]
    pieces = (Bucket((Block("a", 0, 8),)), *(Bucket((Block("b", i, 1),)) for i in range(4)))
    urgent = Plan("w", pieces, credit=1)
    ends = [(span.layers[0], span.end) for span in simulate(TWO, urgent, priced(0, 2)).communication]
    # One byte of b at a time from 7: two of them, then a (ready at 11) overtakes the rest.
    assert ends == [("b", 9), ("b", 11), ("a", 27), ("b", 29), ("b", 31)]
    generous = simulate(TWO, replace(urgent, credit=100), priced(0, 2)).communication
    assert [span.layers[0] for span in generous] == ["b", "b", "b", "b", "a"]


def test_an_update_without_gradients_is_not_lost():
    workload = Workload("w", (Layer("a", 1, 2, 0),), update_time=3)
    assert simulate(workload, Plan("w", (), forward_overlap=True), priced(1, 1)).iteration_time == 6


class DisagreementError(Exception):
    """Of the two simulators."""


def disagreements(monkeypatch, changed, name, change, drawn):
    """Whether the two simulators disagree in one of 500 cases after a change of the first."""
    monkeypatch.setattr(changed, name, change)

    @settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
    @given(drawn)
    def compare(case):
        workload, plan, pricing = case
        found = simulate(workload.recomputing(plan.recompute), plan, pricing)
        if found.iteration_time != events.simulate(*case)[0][-1]:
            raise DisagreementError

    try:
        compare()
    except DisagreementError:
        return True
    return False


def unshared(steps):
    """Every transfer as fast as one alone."""

    def stepped(network, now):
        network.shares = [1] * len(network.shares)
        return steps(network, now)

    return stepped


def generous(initialise):
    """One channel more than the plan has."""

    def initialised(network, program, pricing, run):
        wider = {name: replace(stream, width=stream.width + 1) for name, stream in program.streams.items()}
        initialise(network, replace(program, streams=wider), pricing, run)

    return initialised


def forgetful(unblock):
    """Priorities that are forgotten: what is ready is handed over in the order of readiness."""

    def unblocked(network, number):
        unblock(network, number)
        for one in network.communicators.values():
            if one.urgent and one.credit is not None:
                one.queue.append(one.urgent.pop())
                one.credit -= network.operations[one.queue[-1]].size

    return unblocked


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("steps", unshared(osfmodel.engine.simulator._Network.steps)),
        ("__init__", generous(osfmodel.engine.simulator._Network.__init__)),
        ("_unblock", forgetful(osfmodel.engine.simulator._Network._unblock)),
    ],
    ids=["bandwidth-not-shared", "a-channel-too-many", "priority-forgotten"],
)
def test_the_second_simulator_notices(monkeypatch, name, change):
    """The oracle shown failing: three wrong simulators disagree with it."""
    assert disagreements(monkeypatch, osfmodel.engine.simulator._Network, name, change, cases())


def never_early(following):
    """Releases only after backward."""

    def followed(compute):
        compute.yielded = False
        return following(compute)

    return followed


def gathered_once(received):
    """The entries of one rank in the place of those of all."""
    return lambda sparsity, bucket: sparsity.sent_bytes(bucket)


@pytest.mark.parametrize(
    ("changed", "name", "change"),
    [
        (osfmodel.engine.simulator._Compute, "_next", never_early(osfmodel.engine.simulator._Compute._next)),
        (Sparsity, "gathered_bytes", gathered_once(Sparsity.gathered_bytes)),
        (Sparsity, "sparsify", lambda sparsity, block, density: 0),
        (Workload, "recomputing", lambda workload, segments: workload),
    ],
    ids=["released-late", "one-rank-gathered", "nothing-selected", "nothing-recomputed"],
)
def test_the_second_simulator_notices_changes_beyond_dense_plans(monkeypatch, changed, name, change):
    assert disagreements(monkeypatch, changed, name, change, beyond_dense())


def test_the_recursion_notices(monkeypatch):
    original = osfmodel.engine.strategies.lower

    def without_hooks(workload, plan, pricing):
        return original(workload, plan, replace(pricing, effects=replace(pricing.effects, hook_time=0)))

    pricing = priced(1, 2, hook_time=Fraction(1))
    expected = predict_timeline(TWO, Plan("w", APART), pricing.cost(), pricing.effects).iteration_time
    assert simulate(TWO, Plan("w", APART), pricing).iteration_time == expected
    monkeypatch.setattr(osfmodel.engine.strategies, "lower", without_hooks)
    assert simulate(TWO, Plan("w", APART), pricing).iteration_time != expected


WRONG = {
    "other workload": (lambda: Plan("x", APART), "for workload 'x'"),
    "a byte twice": (lambda: Plan("w", (*APART, Bucket((Block("a", 7, 1),)))), "'a' are sent twice"),
    "a layer twice": (lambda: Plan("w", (*APART, APART[0])), "'b' are sent twice"),
    "a hole": (lambda: Plan("w", (APART[0], Bucket((Block("a", 0, 3), Block("a", 4, 4))))), "'a' are sent not at all"),
    "bytes missing": (lambda: Plan("w", (APART[0], Bucket((Block("a", 0, 7),)))), "sends 7 bytes of 'a'"),
    "a layer missing": (lambda: Plan("w", APART[:1]), "sends 0 bytes of 'a'"),
    "a stranger": (lambda: Plan("w", (*APART, Bucket((Block("z", 0, 1),)))), "names 'z'"),
    "an empty bucket": (lambda: Plan("w", (*APART, Bucket(()))), "bucket 2 of the plan is empty"),
    "a negative block": (lambda: Plan("w", (*APART, Bucket((Block("a", 8, -1),)))), "bytes of a block of 'a'"),
    "no channel": (lambda: Plan("w", APART, channels=0), "0 channels"),
    "half a channel": (lambda: Plan("w", APART, channels=1.5), "1.5 channels"),
    "no credit": (lambda: Plan("w", APART, credit=0), "the credit of the plan is 0"),
    "negative credit": (lambda: Plan("w", APART, credit=-5), "the credit of the plan is -5"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("setting", [{}, {"channels": 2}, {"forward_overlap": True}])
def test_a_wrong_plan_is_refused_in_one_line(name, setting):
    make, message = WRONG[name]
    with pytest.raises(OsfError, match=message) as caught:
        simulate(TWO, replace(make(), **{"channels": 1, **setting}), priced(1, 1))
    assert "\n" not in str(caught.value)
