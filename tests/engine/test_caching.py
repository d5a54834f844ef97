"""PyTorch's caching allocator: segments computed by hand from its rules, and what a step reserves."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

import osfmodel as osf
from osfmodel.engine.caching import CachingAllocator
from osfmodel.engine.memory import peak_as_known, reserved_as_known
from osfmodel.solve.verdicts import DATA, reserved_of
from tests.commands import invoke

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "reserved", "allocated"),
    [
        ([1], 2 * MIB, 512),
        ([MIB] * 2, 2 * MIB, 2 * MIB),  # two of the largest small blocks fill a small segment
        ([MIB + 1], 20 * MIB, MIB + 512),
        ([6 * MIB] * 3, 20 * MIB, 18 * MIB),
        ([6 * MIB] * 4, 40 * MIB, 24 * MIB),
        ([10 * MIB], 10 * MIB, 10 * MIB),
        ([11 * MIB + 1], 12 * MIB, 12 * MIB),  # less than 1 MiB is left: it is not split off
        ([0, 513], 2 * MIB, 1024),
    ],
)
def test_segments_are_those_of_their_sizes(sizes, reserved, allocated):
    allocator = CachingAllocator()
    for size in sizes:
        allocator.take(size)
    assert (allocator.reserved, allocator.allocated) == (reserved, allocated)


def test_a_block_that_is_cut_is_too_small_for_what_was_there():
    allocator = CachingAllocator()
    block = allocator.take(100 * MIB)
    allocator.give(block)
    allocator.take(30 * MIB)  # out of the free 100
    assert allocator.reserved == 100 * MIB
    allocator.take(100 * MIB)
    assert allocator.reserved == 200 * MIB
    allocator.take(70 * MIB)  # what the cut left
    assert allocator.reserved == 200 * MIB


def test_free_neighbours_become_one_block():
    allocator = CachingAllocator()
    blocks = [allocator.take(size * MIB) for size in (5, 5, 5)]
    for place in (0, 2, 1):
        allocator.give(blocks[place])
    assert allocator.allocated == 0
    allocator.take(9 * MIB)
    allocator.take(9 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_smallest_block_that_will_do_is_taken():
    allocator = CachingAllocator()
    large, small = allocator.take(64 * MIB), allocator.take(32 * MIB)
    allocator.give(large)
    allocator.give(small)
    allocator.take(31 * MIB)
    allocator.take(64 * MIB)
    assert allocator.reserved == 96 * MIB


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.give(allocator.take(32 * MIB, "gathers"))
    allocator.take(32 * MIB)
    assert allocator.reserved == 64 * MIB


def test_a_segment_that_grows_has_no_holes():
    allocator = CachingAllocator(expandable=True)
    allocator.give(allocator.take(100 * MIB))
    allocator.take(30 * MIB)
    allocator.take(100 * MIB)  # the 70 that are left grow by 30, in pages of 20
    assert allocator.reserved == 140 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_blocks_in_use_lie_apart_and_segments_are_covered(expandable):
    """Over many random sizes: no two blocks in use share an address, and nothing that is given back stays in use."""
    chance, allocator = random.Random(7), CachingAllocator(expandable=expandable)
    used = []
    for _ in range(2000):
        if used and chance.random() < 0.5:
            allocator.give(used.pop(chance.randrange(len(used))))
        else:
            used.append(allocator.take(int(2 ** chance.uniform(8, 27)), chance.randrange(2)))
        assert allocator.allocated == sum(block.size for block in used) <= allocator.reserved
    ordered = sorted((block.pool[0], block.pool[1], block.start, block.size) for block in used)
    assert all(one[:2] != two[:2] or one[2] + one[3] <= two[2] for one, two in pairwise(ordered))
    for block in used:
        allocator.give(block)
    assert allocator.allocated == 0


def test_scale_and_memory_say_what_is_simulated_near_the_limit_and_the_usual_far_from_it():
    """Of 16 GiB a step of Llama-3.2-1B takes most; of 80 a small part."""
    asked = ["llama3.2-1b:h100,seq4096,batch1,ac=full", "--cluster", "nccl:h100x8", "--workers", "8", "--plan", "fsdp2"]
    found = []
    for room in ("11GiB", "80GiB"):
        made = invoke(["scale", *asked, "--memory", room, "--json"])
        found.append(json.loads(made.stdout)["points"][0])
    near, far = found
    assert near["peak_memory_bytes"] == far["peak_memory_bytes"] > 0.7 * 11 * 2**30
    assert near["reserved_memory_bytes"] != far["reserved_memory_bytes"] == reserved_of(far["peak_memory_bytes"], DATA)
    assert near["reserved_memory_bytes"] > near["peak_memory_bytes"]


@pytest.fixture
def predicted():
    """A step of Llama-3.2-1B under FSDP2 on 8 H100."""
    workload = osf.load_workload("llama3.2-1b:h100,seq4096,batch4")
    found = osf.predict(workload, osf.load_cluster("nccl:h100x8"), "fsdp2", 8)
    return workload, found.plan, found.timeline


def test_a_step_reserves_more_than_it_holds_and_least_in_segments_that_grow(predicted):
    workload, plan, timeline = predicted
    live = peak_as_known(workload, plan, timeline, 8).bytes
    plain, expandable = (reserved_as_known(workload, plan, timeline, 8, expandable=how) for how in (False, True))
    assert live <= expandable <= plain < 1.5 * live
    assert expandable < 1.06 * live
