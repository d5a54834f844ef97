"""Accumulated micro-batches under plans that shard: collectives, times, memory, and the way that is chosen."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest

from osfmodel import Layer, PlanError, UsageError, Workload, compare, load_cluster, pricing_of, tune
from osfmodel.engine.strategies import lower
from osfmodel.engine.strategies.holdings import GRADIENTS
from osfmodel.entities.batches import accumulating
from osfmodel.entities.modules import SHARDING, in_micro_batches, in_one_micro_batch, step_of
from osfmodel.entities.sharding import EACH, LAST, LAST_KEPT, MOST_MICRO_BATCHES, SHARDS_EACH, Sharding
from osfmodel.planning.tuning import tuned_rule
from osfmodel.planning.what_if import WhatIf
from osfmodel.solve.solution import Limits, MemoryLimit
from osfmodel.solve.verdicts import peak_of
from osfmodel.targets.named_plans import make_plan

COUNT, WORKERS, BYTES = 3, 16, 4 * 16 * 10**5
BLOCKS = [Layer(f"layers.{i}.weight", 3e-3, 6e-3, BYTES, activation_bytes=10, peak_bytes=10 * i) for i in range(4)]
ROOT = Layer("emb.weight", 2e-4, 2e-4, BYTES, activation_bytes=10, peak_bytes=0)
MODEL = Workload("model", (ROOT, *BLOCKS), 8, update_time=1.6e-3, state_bytes=0)
NODES = load_cluster("nccl:v100x8,25Gbps")
SLOW = load_cluster("nccl:v100x8,2Gbps")


def predicted(name, count=COUNT, cluster=NODES):
    what_if = WhatIf(accumulate=count)
    found = compare(what_if.of_workload(MODEL, WORKERS), cluster, WORKERS, [name])
    return found.under(what_if, what_if.alone(MODEL, WORKERS)).predictions[0]


def sent(plan):
    """Numbers of collectives and their bytes, by kind."""
    program = lower(MODEL, plan, pricing_of(NODES, WORKERS))
    counts, sizes = Counter(), Counter()
    for one in program.operations:
        if one.size and one.kind in ("all_gather", "reduce_scatter", "all_reduce", "broadcast"):
            counts[one.kind] += 1
            sizes[one.kind] += one.size
    return counts, sizes


@pytest.mark.parametrize(
    ("name", "form", "gathers", "scatters", "reductions"),
    [
        # By hand, 3 micro-batches of 4 blocks and a root. Forward gathers 5 groups and backward 4 again.
        ("fsdp2", EACH, 3 * (5 + 4), 3 * 5, 0),
        ("fsdp2", LAST, 3 * (5 + 4), 5, 0),
        ("fsdp2", LAST_KEPT, (5 + 4) + 4 + 4, 5, 0),  # those of later forwards are there
        ("fsdp2:keep", EACH, 3 * 5, 3 * 5, 0),
        ("fsdp2:keep", LAST_KEPT, 5, 5, 0),
        ("hsdp", EACH, 3 * (5 + 4), 3 * 5, 3 * 5),
        ("hsdp", SHARDS_EACH, 3 * (5 + 4), 3 * 5, 5),
        ("hsdp", LAST, 3 * (5 + 4), 5, 5),
        ("fsdp1", EACH, 3 * (5 + 4), 3 * 5, 0),
        ("fsdp1", LAST, 3 * (5 + 4), 5, 0),
    ],
)
def test_collectives_of_each_way_to_accumulate(name, form, gathers, scatters, reductions):
    """All groups are of BYTES, which 16 ranks share evenly; shards of 8 ranks are all-reduced under HSDP."""
    plan = in_micro_batches(make_plan(name, MODEL, pricing_of(NODES, WORKERS)), COUNT, form)
    counts, sizes = sent(plan)
    assert counts == Counter(all_gather=gathers, reduce_scatter=scatters, all_reduce=reductions)
    assert sizes["all_gather"] == gathers * BYTES
    assert sizes["reduce_scatter"] == scatters * BYTES
    assert sizes["all_reduce"] == reductions * BYTES // 8


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fsdp2", {"all_gather": 3 * 9, "reduce_scatter": 3 * 5}),
        ("hsdp", {"all_gather": 3 * 9, "reduce_scatter": 3 * 5, "all_reduce": 3 * 5}),
        ("fsdp1", {"all_gather": 3 * 9, "reduce_scatter": 3 * 5}),
        ("zero-1", {"all_gather": 1, "all_reduce": 1}),  # with the last micro-batch
        ("zero-2", {"all_gather": 1, "all_reduce": 3}),  # with each
        ("distributed-optimizer", {"all_gather": 1, "reduce_scatter": 1}),  # the first gathers, the last reduces
    ],
)
def test_frameworks_accumulate_as_they_do_unless_told_otherwise(name, expected):
    found = predicted(name)
    assert found.plan.sharding.micro_batches == COUNT
    counts, _ = sent(found.plan)
    assert counts == Counter(expected)


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2:keep", "hsdp", "fsdp1", "torchtitan", "sharded"])
def test_micro_batches_that_gather_and_reduce_add_up(name):
    """T(k) = k (T(1) - u) + u, with u the update of a shard."""
    one, several = predicted(name, 1), predicted(name)
    seen = one.bound.question.workload  # with the usual effects, which lengthen the update too
    update = seen.update_time / (8 if one.plan.sharding.replicas > 1 else WORKERS)
    assert several.iteration_time == pytest.approx(COUNT * (one.iteration_time - update) + update, rel=1e-9)
    assert several.timeline.compute_time == pytest.approx(accumulating(seen, COUNT).compute_time)


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2:keep", "hsdp", "torchtitan", "fsdp1", "zero-1", "zero-2", "zero-3"])
def test_the_base_is_that_of_ddp_and_the_bound_is_below(name):
    found, ddp = predicted(name, cluster=SLOW), predicted("ddp", cluster=SLOW)
    assert found.alone == ddp.alone == accumulating(MODEL, COUNT).compute_time
    assert found.scaling_factor == found.alone / found.iteration_time
    assert found.alone * (1 - 1e-9) - MODEL.update_time <= found.lower_bound <= found.iteration_time


def test_strong_scaling_shares_the_batch_between_micro_batches_too():
    what_if = WhatIf(global_batch=WORKERS * COUNT * 8, accumulate=COUNT)
    count, one = step_of(what_if.of_workload(MODEL, WORKERS), SHARDING[0])
    assert (count, one) == (COUNT, MODEL)
    assert step_of(what_if.of_workload(MODEL, WORKERS), "replicated")[0] == 1


def levels(plan, optimizer="sgd"):
    from osfmodel.engine import predict_timeline
    from osfmodel.engine.memory import memory_as_known

    timeline = predict_timeline(MODEL, plan, pricing_of(NODES, WORKERS))
    return memory_as_known(MODEL, plan, timeline, WORKERS, optimizer=optimizer).levels


def test_gradients_are_whole_only_where_they_are_not_reduced():
    """Under LAST whole gradients stay until the end; by default a rank holds its shards and one group's gradients."""
    plan = make_plan("fsdp2", MODEL, pricing_of(NODES, WORKERS))
    whole, shard = MODEL.gradient_bytes, MODEL.gradient_bytes // WORKERS
    held = {}
    for form in (EACH, LAST):
        last = [one for one in levels(in_micro_batches(plan, COUNT, form)) if one.during == "forward layers.3.weight"][
            -1
        ]
        held[form] = last.held[GRADIENTS]
    assert held == {EACH: shard, LAST: whole}
    assert max(one.held.get(GRADIENTS, 0) for one in levels(in_micro_batches(plan, COUNT))) <= shard + 2 * BYTES


def test_gradients_that_wait_are_in_the_type_in_which_they_are_reduced():
    """bfloat16 gathered and float32 reduced: gradients of half the bytes are added to those of all."""
    plan = in_micro_batches(make_plan("fsdp2:bf16,reduce=fp32", MODEL, pricing_of(NODES, WORKERS)), COUNT, LAST)
    last = [one for one in levels(plan) if one.during == "forward layers.3.weight"][-1]
    assert last.held[GRADIENTS] == MODEL.gradient_bytes
    again = [one for one in levels(plan) if one.during == "backward layers.2.weight"][1]
    assert again.held[GRADIENTS] >= MODEL.gradient_bytes  # and what backward of the second makes
    assert max(one.held[GRADIENTS] for one in levels(plan)) <= MODEL.gradient_bytes + 2 * BYTES // 2 + 2 * BYTES // 16


def test_activations_are_there_in_every_micro_batch():
    plan = in_micro_batches(make_plan("fsdp2", MODEL, pricing_of(NODES, WORKERS)), COUNT)
    found = [one.held["activations and scratch"] for one in levels(plan) if one.during == "backward layers.3.weight"]
    assert found == [30] * COUNT


def test_the_faster_way_is_taken_only_within_memory(monkeypatch):
    """A slow network: whole gradients and parameters save most of the messages, where there is room for them."""
    monkeypatch.setattr(sys.modules[__name__], "MODEL", replace(MODEL, layers=(ROOT, *BLOCKS[:2])))
    several = WhatIf(accumulate=COUNT).of_workload(MODEL, 1)
    without = tune(several, SLOW, WORKERS, "fsdp2")
    assert without.form == without.plan.sharding.form == EACH
    (remark,) = [one for one in without.remarks if "micro-batches are accumulated" in one]
    assert "by set_requires_gradient_sync(False) a step takes" in remark
    ample = tune(several, SLOW, WORKERS, "fsdp2", Limits(memory=MemoryLimit(2**40)))
    assert ample.form == ample.plan.sharding.form == LAST_KEPT
    assert ample.outcomes[0].tuned_time < without.outcomes[0].tuned_time
    assert ample.outcomes[0].lower_bound <= ample.outcomes[0].tuned_time
    assert ample.outcomes[0].default_time == pytest.approx(predicted("fsdp2", cluster=SLOW).iteration_time)
    assert "; by reducing in each a step takes" in " ".join(ample.remarks)
    again = compare(several, SLOW, WORKERS, [("tuned", tuned_rule(ample))]).predictions[0]
    assert again.iteration_time == pytest.approx(ample.outcomes[0].tuned_time)
    room = predicted("fsdp2", cluster=SLOW)
    tight = peak_of(MODEL, room.plan, room.timeline, WORKERS).bytes
    close = tune(several, SLOW, WORKERS, "fsdp2", Limits(memory=MemoryLimit(tight)))
    assert close.form == EACH
    taken = peak_of(MODEL, close.plan, compare(several, SLOW, WORKERS, [close.plan]).predictions[0].timeline, WORKERS)
    assert taken.bytes <= tight


@pytest.mark.parametrize(
    ("form", "calls"),
    [
        (EACH, set()),
        (SHARDS_EACH, {"set_requires_all_reduce"}),
        (LAST, {"set_requires_gradient_sync"}),
        (LAST_KEPT, {"set_requires_gradient_sync", "set_reshard_after_backward"}),
    ],
)
def test_the_lines_make_the_calls_of_their_way(form, calls):
    """Steps by hand: each call says before each micro-batch whether it is the last."""
    from osfmodel import CONFIG_TARGETS

    target = CONFIG_TARGETS["hsdp"]
    lines = target.text.written(target.convert.default_knobs(), MODEL, micro_batches=COUNT, form=form)
    made = {}

    class Recorder:
        def __getattr__(self, name):
            return lambda *given: made.setdefault(name, []).append(given)

    space = {"model": Recorder()}
    exec(lines[lines.index("def train_step") :], space)
    optimizer, loss = Recorder(), type("Loss", (), {"__truediv__": lambda self, by: Recorder()})
    space["train_step"](range(COUNT), lambda batch: loss(), optimizer)
    assert made.keys() - {"zero_grad", "step", "backward"} == calls
    assert all(made[name] == [(False,), (False,), (True,)] for name in calls)
    assert len(made["backward"]) == COUNT


def test_plans_of_other_numbers_are_refused_and_plans_of_one_are_not():
    plan = make_plan("fsdp2", MODEL, pricing_of(NODES, WORKERS))
    several = WhatIf(accumulate=COUNT).of_workload(MODEL, 1)
    given = [predicted("fsdp2").iteration_time]
    given += [compare(several, NODES, WORKERS, [one]).predictions[0].iteration_time for one in _both(plan)]
    assert given == [given[0]] * 3
    with pytest.raises(PlanError, match="the plan is for 3 micro-batches a step, not 1: --accumulate 3"):
        compare(MODEL, NODES, WORKERS, [in_micro_batches(plan, COUNT)])
    with pytest.raises(PlanError, match=f"a plan that shards has {MOST_MICRO_BATCHES} at most, lower --accumulate"):
        predicted("fsdp2", MOST_MICRO_BATCHES + 1)


def _both(plan):
    return plan, in_micro_batches(plan, COUNT)


@pytest.mark.parametrize("name", ["fsdp2", "zero-1", "zero-3", "distributed-optimizer", "fsdp1"])
def test_a_plan_of_one_micro_batch_is_found_again(name):
    plan = make_plan(name, MODEL, pricing_of(NODES, WORKERS))
    assert in_one_micro_batch(in_micro_batches(plan, COUNT, LAST)) == plan
    assert in_one_micro_batch(plan) is plan
    assert predicted(name).runs_on == predicted(name, 1).runs_on != ()


def test_steps_are_those_of_the_workload_where_nothing_shards():
    several = accumulating(MODEL, COUNT)
    assert step_of(several, "replicated") == (1, several)
    assert step_of(MODEL, SHARDING[0]) == (1, MODEL)
    assert Sharding(()).form == EACH
    assert several.accumulated == (COUNT, MODEL)
    assert replace(several, update_time=1.0).accumulated is None  # it is no longer made of those
    with pytest.raises(UsageError):
        WhatIf(accumulate=0)
