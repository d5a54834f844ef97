"""Local search: its clock against the engine, its rule of filling against filling, and what it reaches."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from osfmodel import Layer, Workload
from osfmodel.cost import AffineCost
from osfmodel.cost.pricing import Pricing
from osfmodel.engine import predict_timeline
from osfmodel.entities.plan import Objective
from osfmodel.solve.bounds import objective_bound
from osfmodel.solve.scheduling import Chunk, Jobs, blocks_plan, chunks_in, plan_of
from osfmodel.solve.search.local_search import ChunkTimer, Filling, Rows, improve, moves
from tests.draws import examples
from tests.problems import tiny_workload

RULES = [Objective(*rule) for rule in product((1, 2, 3), (False, True), ("replicated", "split"))]


def pricing_of(rng: np.random.Generator) -> Pricing:
    """Lines and a gain in rational numbers; reduce-scatter and all-gather unlike each other."""
    costs = {
        kind: AffineCost(((Fraction(int(rng.integers(0, 5)), 2), Fraction(int(rng.integers(1, 5)), 2)),))
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    }
    return Pricing(costs, gain=Fraction(int(rng.integers(2, 5)), 2))


def random_plan(rng: np.random.Generator, workload: Workload):
    parts: list[list[tuple[int, int, int]]] = [[] for _ in range(int(rng.integers(1, 5)))]
    for item, size in enumerate(workload.gradients.sizes):
        cuts = sorted({0, size, *rng.integers(0, size + 1, int(rng.integers(0, 3))).tolist()})
        for low, high in pairwise(cuts):
            parts[int(rng.integers(0, len(parts)))].append((item, low, high - low))
    return blocks_plan(workload, parts)


@pytest.mark.parametrize("objective", RULES, ids=str)
def test_its_clock_is_the_engine_s(objective):
    rng = np.random.default_rng(61)
    for _ in range(examples(10)):
        workload, pricing = tiny_workload(rng, 12), pricing_of(rng)
        plan = random_plan(rng, workload).under(objective)
        timer = ChunkTimer(Jobs.of(workload, objective), pricing, objective)
        time = timer.time(chunks_in(workload, plan))[0]
        assert time == predict_timeline(workload, plan, pricing).iteration_time


def test_what_can_be_filled_is_filled():
    """The rule of room, kind by kind, against the plan that fills the chunks; never later than the chunks."""
    rng = np.random.default_rng(62)
    objective = Objective(forward_overlap=True)
    seen = {True: 0, False: 0}
    for _ in range(300):
        workload, pricing = tiny_workload(rng, 12), pricing_of(rng)
        jobs = Jobs.of(workload, objective)
        count = int(rng.integers(1, 4))
        chunks = [Chunk(int(rng.integers(0, len(jobs.sizes))), int(rng.integers(1, 9)), "int8") for _ in range(count)]
        plan = plan_of(workload, chunks, objective)
        able = bool(Filling.of(jobs)(Rows.of(chunks))[0])
        seen[able] += 1
        assert able == (plan is not None)
        if plan is not None:
            plan.require_valid(workload)
            time = predict_timeline(workload, plan, pricing).iteration_time
            assert time <= ChunkTimer(jobs, pricing, objective).time(chunks)[0]
    assert min(seen.values()) > 30


def every_sequence(jobs: Jobs):
    """Every sequence of chunks that sends all bytes, kinds as their contents say."""

    def rest(left: tuple[int, ...]):
        if not any(left):
            yield ()
        for sent in product(*(range(size + 1) for size in left)):
            if any(sent):
                kind = max(i for i, part in enumerate(sent) if part)
                for others in rest(tuple(a - b for a, b in zip(left, sent, strict=True))):
                    yield (Chunk(kind, sum(sent), "int8"), *others)

    return set(rest(tuple(jobs.sizes)))


@pytest.mark.parametrize("objective", [rule for rule in RULES if rule.channels < 3], ids=str)
def test_between_the_bound_and_every_schedule_and_mostly_at_the_best(objective):
    rng = np.random.default_rng(63)
    hits = 0
    for _ in range(12):
        workload, pricing = tiny_workload(rng, 4), pricing_of(rng)
        jobs = Jobs.of(workload, objective)
        timer = ChunkTimer(jobs, pricing, objective)
        best = min(timer.time(chunks)[0] for chunks in every_sequence(jobs))
        assert best >= objective_bound(workload, pricing, objective)
        start = [Chunk(len(jobs.sizes) - 1, sum(jobs.sizes), "int8")]
        found = improve(start, timer, 0, 3000)
        assert plan_of(workload, found, objective) is not None
        assert best <= timer.time(found)[0] <= timer.time(start)[0]
        hits += timer.time(found)[0] == best
    assert hits >= (6 if objective.channels > 1 and objective.split else 9)


def test_it_stops_where_it_is_told():
    rng = np.random.default_rng(64)
    workload, pricing, objective = tiny_workload(rng, 12), pricing_of(rng), Objective(forward_overlap=True)
    timer = ChunkTimer(Jobs.of(workload, objective), pricing, objective)
    start = chunks_in(workload, random_plan(rng, workload))
    assert improve(start, timer, timer.time(start)[0], 1000) == start
    asked = timer.asked
    improve(start, timer, 0, 7)
    assert timer.asked - asked <= 8 + 1


def test_dtypes_stay_apart():
    jobs = Jobs([4, 4, 4], [0, 1, 2], [1, 2, 3], ["a", "b", "a"], 1)
    able = Filling.of(jobs)
    chunks = [Chunk(2, 8, "a"), Chunk(1, 4, "b")]
    assert able(Rows.of(chunks))[0]
    assert not able(Rows.of([Chunk(2, 12, "a")]))[0]
    assert not able(Rows.of([Chunk(1, 8, "a"), Chunk(1, 4, "b")]))[0]
    for rows in moves(Rows.of(chunks), 3, 1):
        assert all({chunk.dtype for chunk in rows.row(number)} == {"a", "b"} for number in range(len(rows.last)))


def test_bytes_that_rounding_to_elements_loses_go_where_the_most_room_was():
    """12 bytes of float32 in two chunks of 6: two elements and one."""
    workload = Workload("w", (Layer("a", 1.0, 1.0, 12),))
    plan = plan_of(workload, [Chunk(0, 6), Chunk(0, 6)], Objective(forward_overlap=True))
    assert plan is not None
    assert sorted(bucket.size for bucket in plan.buckets) == [4, 8]
    assert plan_of(workload, [Chunk(0, 6), Chunk(0, 5)], Objective(forward_overlap=True)) is None


@pytest.mark.parametrize("objective", RULES, ids=str)
def test_rows_are_timed_and_filled_as_each_of_them(objective):
    rng = np.random.default_rng(65)
    for _ in range(5):
        workload, pricing = tiny_workload(rng, 12), pricing_of(rng)
        jobs = Jobs.of(workload, objective)
        timer, able = ChunkTimer(jobs, pricing, objective), Filling.of(jobs)
        for rows in moves(Rows.of(chunks_in(workload, random_plan(rng, workload))), len(jobs.sizes), jobs.grain):
            each = [rows.row(number) for number in range(len(rows.last))]
            assert list(timer.times(rows)) == [timer.time(chunks) for chunks in each]
            assert able(rows).tolist() == [bool(able(Rows.of(chunks))[0]) for chunks in each]
