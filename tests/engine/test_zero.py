"""Steps of ZeRO stages 1 and 2: times from written dependencies, padding, memory and micro-batches."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from osfmodel import Block, Bucket, Layer, Plan, PlanError, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.engine.memory import memory_of
from osfmodel.engine.simulator import run
from osfmodel.engine.strategies import STRATEGIES, lower
from osfmodel.engine.strategies.zero import gathered_bytes
from osfmodel.entities.effects import Effects
from osfmodel.entities.sharding import ParameterGroup, Sharding
from osfmodel.solve.bounds import plan_bound
from tests.draws import seeds

COPY_IN = Fraction(1, 900)
STAGES = ("zero-1", "zero-2")


def prices(workers):
    """Prices of 1 second and bytes / 40 of a reduction, bytes / 50 of a gathering, and a copy into buckets."""
    lines = {"all_gather": Fraction(1, 50), "reduce_scatter": Fraction(1, 100), "all_reduce": Fraction(1, 40)}
    costs = {kind: AffineCost(((Fraction(1), slope),)) for kind, slope in lines.items()}
    return Pricing(costs, workers, effects=Effects(copy_in=COPY_IN))


def expected(layers, buckets, shards, batches, stage, overlap):
    """The end of a step. Layers, in forward order, are (seconds of forward, of backward, bytes).

    ``buckets`` are sets of numbers of layers with seconds of reduction and the dtype; one is sent as a gradient of a
    later one of its dtype is ready. ``shards``: seconds of the update and of each all-gather. Each operation's end is
    the longest path to it; compute, and what reduces and gathers, go one by one.
    """
    ends, reduced, last = {"start": Fraction(0)}, [], "start"
    needs, wire = [], "start"

    def compute(name, seconds):
        nonlocal last
        ends[name] = max(ends[need] for need in (last, *needs)) + seconds
        last = name
        needs.clear()

    def send(name, seconds, need):
        nonlocal wire
        ends[name] = max(ends[wire], ends[need]) + seconds
        wire = name

    def full(place, done):
        later = [members for members, _, dtype in buckets[place + 1 :] if dtype == buckets[place][2]]
        return buckets[place][0] <= done and bool(later) and bool(later[0] & done)

    for batch in range(batches):
        sends = stage == "zero-2" or batch == batches - 1
        for number, (forward, _, _) in enumerate(layers):
            compute(f"forward {number} of {batch}", forward)
        done, behind = set(), 0
        for number, (_, backward, size) in reversed(list(enumerate(layers))):
            compute(f"backward {number} of {batch}", backward + (COPY_IN * size if sends else 0))
            done.add(number)
            while sends and behind < len(buckets) and (full(behind, done) or number == 0):
                name = f"reduce {behind} of {batch}"
                send(name, buckets[behind][1], f"backward {number} of {batch}")
                if not overlap:
                    needs.append(name)
                elif reduced:
                    needs.append(reduced[-1])
                reduced.append(name)
                behind += 1
        needs.extend(reduced)
    compute("update", shards[0])
    for number, seconds in enumerate(shards[1]):
        send(f"gather {number}", seconds, "update")
    return max(ends.values())


def fraction(source, most):
    return Fraction(source.randint(1, 12 * most), 12)


def runs_by_dtype(source, layers, dtypes):
    """Runs of the layers with a gradient in ready order, each dtype by itself."""
    runs = []
    for dtype in dtypes:
        for layer in reversed([layer for layer in layers if layer.dtype == dtype and layer.gradient_bytes]):
            if runs and runs[-1][0].dtype == dtype and source.random() < 0.5:
                runs[-1].append(layer)
            else:
                runs.append([layer])
    return runs


def drawn(source):
    """A workload with one or two dtypes, and buckets of runs of each dtype, in the order in which they are ready."""
    dtypes = source.choice((("float32",), ("float32", "bfloat16")))
    layers = [
        Layer(
            f"l{place}", fraction(source, 3), fraction(source, 5),
            4 * source.choice((0, 1, 1)) * source.randint(1, 200), source.choice(dtypes),
        )
        for place in range(source.randint(1, 9))
    ]  # fmt: skip
    layers.append(Layer("head", fraction(source, 3), fraction(source, 5), 4))
    runs = runs_by_dtype(source, layers, dtypes)
    place = {layer.name: number for number, layer in enumerate(layers)}
    runs.sort(key=lambda run: -min(place[layer.name] for layer in run))
    if source.random() < 0.1:
        source.shuffle(runs)
    return Workload("step", tuple(layers), update_time=fraction(source, 4)), runs


def whole(layers):
    return Bucket(tuple(Block(layer.name, 0, layer.gradient_bytes) for layer in layers))


@pytest.mark.parametrize("seed", seeds(50, 600))
def test_times_are_those_of_the_written_dependencies(seed):
    """In exact fractions, with and without overlap_comm, which changes nothing where launching a collective blocks."""
    source = random.Random(seed)
    workload, runs = drawn(source)
    workers, stage = source.choice((1, 2, 3, 8)), source.choice(STAGES)
    overlap, batches, blocking = source.random() < 0.6, source.choice((1, 1, 2, 3)), source.random() < 0.2
    rules = Sharding((ParameterGroup(),) * len(runs), asynchronous=overlap, micro_batches=batches)
    plan = Plan("step", tuple(map(whole, runs)), strategy=stage, sharding=rules)
    if not overlap and batches == 1 and source.random() < 0.5:
        plan = replace(plan, sharding=None)
    place = {layer.name: number for number, layer in enumerate(workload.layers)}
    buckets = [
        ({place[one.name] for one in run}, 1 + Fraction(sum(one.gradient_bytes for one in run), 40), run[0].dtype)
        for run in runs
    ]
    gathers = []
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        elements = sum(layer.gradient_bytes for layer in workload.layers if layer.dtype == dtype) // width
        while elements % (2 * workers):
            elements += 1
        gathers += [1 + Fraction(elements * width, 50)] if elements else []
    layers = [(layer.forward_time, layer.backward_time, layer.gradient_bytes) for layer in workload.layers]
    shards = workload.update_time / workers, gathers
    pricing = replace(prices(workers), blocking=blocking)
    found = run(lower(workload, plan, pricing), pricing).finish
    assert found == expected(layers, buckets, shards, batches, stage, overlap and not blocking)
    assert plan_bound(workload, plan, pricing) <= found * (1 + 1e-9)


FOUR = Workload(
    "four",
    tuple(
        Layer(name, Fraction(1), Fraction(2), size, peak_bytes=0)
        for name, size in zip("abcd", (40, 80, 120, 160), strict=True)
    ),
    update_time=Fraction(4),
    state_bytes=802,
    update_bytes=50,
)
ONE_BY_ONE = Plan("four", tuple(whole([layer]) for layer in reversed(FOUR.layers)), strategy="zero-1")


def with_rules(plan, **rules):
    return replace(plan, sharding=Sharding((ParameterGroup(),) * len(plan.buckets), **rules))


def test_backward_stalls_for_the_reduction_before():
    """Reductions take 5, 4, 3 and 2 seconds without copies. d is sent with c's gradient; a's backward waits for it."""
    pricing = replace(prices(4), effects=Effects())
    found = run(lower(FOUR, with_rules(ONE_BY_ONE, asynchronous=True), pricing), pricing)
    starts = {span.kind + "".join(span.layers[:1]): span.start for span in found.spans()}
    assert [starts[f"backward{name}"] for name in "dcba"] == [4, 6, 8, 13]
    assert [starts[f"all_reduce{name}"] for name in "dcba"] == [8, 13, 17, 20]
    found = run(lower(FOUR, ONE_BY_ONE, pricing), pricing)
    starts = {span.kind + "".join(span.layers[:1]): span.start for span in found.spans()}
    assert [starts[f"backward{name}"] for name in "dcba"] == [4, 6, 13, 19]
    assert found.finish == 26 + 1 + 1 + Fraction(416, 50)


def test_released_buckets_wait_for_the_end_of_backward():
    """Stage 1 without overlap_comm sends after backward, which no reduction interrupts."""
    buckets = tuple(replace(bucket, release_time=Fraction(12)) for bucket in ONE_BY_ONE.buckets)
    pricing = replace(prices(4), effects=Effects())
    program = lower(FOUR, replace(ONE_BY_ONE, buckets=buckets), pricing)
    assert [one.layers for one in program.operations if one.kind == "backward"] == [("d", "c", "b", "a")]
    assert run(program, pricing).finish == 12 + 14 + 1 + 1 + Fraction(416, 50)


@pytest.mark.parametrize(
    ("sizes", "ranks", "padded"),
    [((400,), 4, 416), ((4,), 8, 64), ((16, 16), 4, 32), ((16, 20), 4, 64), ((40,), 1, 40), ((44,), 1, 48)],
)
def test_parameters_are_padded_together(sizes, ranks, padded):
    """100 elements on 4 ranks become 104, a multiple of 2 * 4; nine become 16."""
    layers = [Layer(f"l{place}", 1, 1, size) for place, size in enumerate(sizes)]
    assert gathered_bytes(Sharding(()), layers, ranks) == padded
    assert gathered_bytes(Sharding((), gather_dtype="bfloat16"), layers, ranks) == padded // 2


def sizes_of(plan, kind):
    return [one.size for one in lower(FOUR, plan, prices(4)).operations if one.kind == kind]


def test_types_change_bytes():
    """Reductions are in the type of gathered parameters, unless they have their own."""
    assert sizes_of(ONE_BY_ONE, "all_reduce") == [160, 120, 80, 40]
    both = with_rules(ONE_BY_ONE, gather_dtype="bfloat16")
    assert (sizes_of(both, "all_reduce"), sizes_of(both, "all_gather")) == ([80, 60, 40, 20], [208])
    apart = with_rules(ONE_BY_ONE, gather_dtype="bfloat16", reduce_dtype="float32")
    assert (sizes_of(apart, "all_reduce"), sizes_of(apart, "all_gather")) == ([160, 120, 80, 40], [208])


@pytest.mark.parametrize(("stage", "reductions"), [("zero-1", 4), ("zero-2", 12)])
def test_micro_batches(stage, reductions):
    """Stage 1 reduces and copies with the last alone; the update and the all-gather come once."""
    plan = with_rules(replace(ONE_BY_ONE, strategy=stage), micro_batches=3)
    operations = STRATEGIES[stage].apart(FOUR, plan, prices(4)).operations
    kinds = [one.kind for one in operations]
    assert [kinds.count(kind) for kind in ("forward", "backward", "all_reduce")] == [12, 12, reductions]
    assert kinds[-2:] == ["update", "all_gather"]
    copied = [one.startup - 2 for one in operations if one.kind == "backward"]
    last = [COPY_IN * size for size in (160, 120, 80, 40)]
    assert copied == (last * 3 if stage == "zero-2" else [0] * 8 + last)


def test_parts_are_copied_after_the_gather():
    """One part of each of four parameters from each of four ranks; the step is longer by that, and bounds hold."""
    plan = with_rules(ONE_BY_ONE, part_time=0.5)
    operations = STRATEGIES["zero-1"].lower(FOUR, plan, prices(4)).operations
    assert [one.kind for one in operations[-2:]] == ["all_gather", "copy_out"]
    times = [predict_timeline(FOUR, each, prices(4)).iteration_time for each in (ONE_BY_ONE, plan)]
    assert times[1] - times[0] == 16 * 0.5


def levels(plan, workload=FOUR):
    """Bytes of each owner by moment."""
    timeline = predict_timeline(workload, plan, prices(4))
    return {one.during: one.held for one in memory_of(workload, plan, timeline, 4).levels}


@pytest.mark.parametrize(("overlap", "buffers"), [(False, 160), (True, 320)])
def test_state_is_split_and_buffers_are_of_the_largest_bucket(overlap, buffers):
    for stage in STAGES:
        found = levels(with_rules(replace(ONE_BY_ONE, strategy=stage), asynchronous=overlap))
        for held in found.values():
            assert (held["weights"], held["optimizer state"], held["buckets"]) == (400, 201, buffers)
        assert found["update"]["update scratch"] == 13
        whole = levels(with_rules(replace(ONE_BY_ONE, strategy=stage), asynchronous=overlap, buffer=1000))
        assert {held["buckets"] for held in whole.values()} == {4000 * (1 + overlap)}


def test_stage_1_keeps_gradients_until_the_update():
    found = levels(ONE_BY_ONE)
    held = {during: found[during].get("gradients", 0) for during in found}
    assert [held[f"backward {name}"] for name in "dcba"] == [0, 160, 280, 360]
    assert held["update"] == 400


def test_gradients_beside_weights_in_half_precision_are_reduced_in_one_buffer_that_stays():
    """As Megatron's and nanotron's, without buckets beside it."""
    found = levels(ONE_BY_ONE, replace(FOUR, weight_bytes=200))
    assert {(held["gradients"], held.get("buckets", 0)) for held in found.values()} == {(400, 0)}
    second = levels(replace(ONE_BY_ONE, strategy="zero-2"), replace(FOUR, weight_bytes=200))
    assert {held["buckets"] for held in second.values()} == {160}


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_gathered_in_half_precision_is_whole_in_that_alone(stage):
    """As DeepSpeed's bf16: weights and gradients of 2 bytes, and shards of float32 weights, and gradients to update."""
    found = levels(with_rules(replace(ONE_BY_ONE, strategy=stage), gather_dtype="bfloat16"))
    assert {(held["weights"], held["optimizer state"]) for held in found.values()} == {(200, 301)}
    assert found["update"]["update scratch"] == 100 + 13
    gradients = [found[f"backward {name}"].get("gradients", 0) for name in "dcba"]
    assert gradients == ([0, 80, 140, 180] if stage == "zero-1" else [0, 80, 80, 75])
    own = levels(with_rules(replace(ONE_BY_ONE, strategy=stage), gather_dtype="float32"))
    assert {(held["weights"], held["optimizer state"]) for held in own.values()} == {(400, 201)}


def test_stage_2_keeps_a_share_of_reduced_gradients():
    """A gradient is whole until the next one is ready, and is then reduced; with overlap_comm one more is under way."""
    plan = replace(ONE_BY_ONE, strategy="zero-2")
    found = levels(plan)
    assert [found[f"backward {name}"].get("gradients", 0) for name in "dcba"] == [0, 160, 160, 150]
    assert found["update"]["gradients"] == 100
    found = levels(with_rules(plan, asynchronous=True))
    assert [found[f"backward {name}"].get("gradients", 0) for name in "dcba"] == [0, 160, 280, 240]
    assert found["update"]["gradients"] == 100
    found = levels(with_rules(plan, micro_batches=2))
    assert max(held.get("gradients", 0) for held in found.values()) == 100 + 160
    found = levels(with_rules(replace(plan, strategy="zero-1"), micro_batches=2))
    assert {found[f"backward {name}"]["gradients"] for name in "dcba"} == {400}


@pytest.mark.parametrize("stage", STAGES)
def test_other_rules_are_refused(stage):
    with pytest.raises(PlanError, match=f"{stage}' excludes 2 channels"):
        lower(FOUR, replace(ONE_BY_ONE, strategy=stage, channels=2), prices(4))
    with pytest.raises(PlanError, match="several replicas"):
        lower(FOUR, with_rules(replace(ONE_BY_ONE, strategy=stage), replicas=2), prices(4))


# --------------------------------------------------------------------------------------------- owners of whole tensors

OWNED = Workload("owned", tuple(Layer(name, 1, 2, size) for name, size in (("a", 80), ("b", 60), ("c", 20))), None, 12)
"""Backward of c ends at 5, of b at 7, of a at 9."""
REDUCED = Plan("owned", tuple(Bucket((Block(one.name, 0, one.gradient_bytes),)) for one in reversed(OWNED.layers)))


def owners(ranks, replicas=1):
    """The operations of a step after its update: two ranks' prices are a tenth of those of four."""
    part = Pricing.of(AffineCost(((0.2, 0.0),)), workers=2)
    pricing = replace(Pricing.of(AffineCost(((2.0, 0.0),)), workers=ranks), parts=lambda *asked: part)
    plan = replace(REDUCED, strategy="zero-1-owners", sharding=Sharding((ParameterGroup(),) * 3, replicas))
    program = lower(OWNED, plan, pricing)
    update = next(number for number, one in enumerate(program.operations) if one.kind == "update")
    return program.operations[update:], run(program, pricing).finish


def test_the_owner_of_each_tensor_broadcasts_it_after_the_update():
    """By hand: four ranks own three tensors, so three broadcasts of 1 s after three reductions and 12 / 4 s."""
    (update, *sends), finish = owners(4)
    assert update.startup == 3
    assert [(one.kind, one.layers, one.size) for one in sends] == [
        ("broadcast", ("a",), 80),
        ("broadcast", ("b",), 60),
        ("broadcast", ("c",), 20),
    ]
    assert finish == pytest.approx(3 + 2 + 3 * 2 + 4 + 3 + 3 * 1)


def test_owners_in_each_replica_broadcast_inside_it():
    """Two ranks of each of two replicas: the larger tensors go to different ranks, the last to the one with less."""
    (update, *sends), _ = owners(4, replicas=2)
    assert update.startup == 6
    assert [(one.layers, one.size, one.startup) for one in sends] == [(("a",), 80, 0.1), (("b", "c"), 80, 0.1)]


def test_zero_with_shards_has_no_replicas():
    plan = replace(REDUCED, strategy="zero-1", sharding=Sharding((ParameterGroup(),) * 3, 2))
    with pytest.raises(PlanError, match="shards between all workers"):
        lower(OWNED, plan, prices(4))


def test_the_bound_of_owners_is_not_above_their_step():
    _, finish = owners(4)
    plan = replace(REDUCED, strategy="zero-1-owners")
    assert plan_bound(OWNED, plan, Pricing.of(AffineCost(((2.0, 0.0),)), workers=4)) == 3 + 6 + 3 <= finish
