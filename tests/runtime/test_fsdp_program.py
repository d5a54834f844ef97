"""The collectives of real ``fully_shard``, kind by kind and byte by byte, against the program of the same plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from osfmodel.cost.pricing import Pricing  # noqa: E402
from osfmodel.engine.strategies import lower  # noqa: E402
from osfmodel.entities.modules import wrapped  # noqa: E402
from osfmodel.entities.sharding import ParameterGroup, Sharding  # noqa: E402
from tests.draws import DRAWS  # noqa: E402
from tests.runtime.fsdp_models import Language, Vision, noted, pretended, sharded, workload_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")
MESHES = [(2,), (3,), (4,), (2, 2), (2, 4)]
DTYPES = [("", ""), ("bfloat16", "float32"), ("bfloat16", "")]
AHEAD = [(0, 1, 1), (2, 2, 1), (0, 1, 2), (1, 3, 2)]
"""All-gathers ahead in forward and in backward, and inputs of reduce-scatters in memory at once."""
BLOCKS = [(f"layers.{number}",) for number in range(4)]
MODELS = {
    "tied": (lambda: Language(tied=True), [BLOCKS, [("layers.0", "layers.1"), *BLOCKS[2:]]]),
    "untied": (lambda: Language(tied=False), [BLOCKS, [("embedding",), *BLOCKS, ("norm", "head")]]),
    "vision": (Vision, [[("layer1",), ("layer2",)], [("stem",), ("layer1",), ("layer2",), ("head",)]]),
    "nested": (lambda: Language(tied=False), [[*BLOCKS[:2], ("layers.1.up",), *BLOCKS[2:], ("head",)]]),
}


def batch_of(name):
    return torch.randn(2, 3, 8, 8) if name == "vision" else torch.randint(0, 31, (2, 5))


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("shape", MESHES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_collectives_are_those_of_fully_shard(name, shape, draw):
    """Of the second step, for every grouping, resharding, types, prefetch and number of inputs.

    Lists of modules to gather ahead are left out where one is inside another.
    """
    world, replicas = shape[0] * (shape[1] if len(shape) > 1 else 1), shape[0] if len(shape) > 1 else 1
    make, groupings = MODELS[name]
    reshards = (True, False, 2) if shape[-1] == 4 else (True, False)
    aheads = AHEAD[::2] if name == "nested" else AHEAD
    with pretended(world):
        cases = draw(product(groupings, reshards, DTYPES, aheads), f"{name} {shape}")
        for groups, reshard, dtypes, (forward, backward, inputs) in cases:
            torch.manual_seed(0)
            model, batch, found = make(), batch_of(name), []
            workload = workload_of(model, batch)
            those = [
                ParameterGroup(one, reshard, forward_prefetch=forward, backward_prefetch=backward) for one in groups
            ]
            rules = Sharding((), replicas, *dtypes, inputs)
            sharded(model, those, rules, shape)
            with noted(found):
                for _ in range(2):
                    found.clear()
                    model.zero_grad()
                    model(batch).float().sum().backward()
            assert found == predicted(workload, wrapped(workload, those, rules), world)


ACCUMULATED = {
    "each": {},
    "last": {"reduce_each": False},
    "last, parameters kept": {"reduce_each": False, "keep": True},
    "each, between replicas with the last": {"replicas_each": False},
}


@pytest.mark.parametrize("shape", [(3,), (2, 2)], ids=str)
@pytest.mark.parametrize("how", ACCUMULATED)
@pytest.mark.parametrize("reshard", [True, False])
def test_collectives_of_accumulated_steps_are_those_of_fully_shard(how, shape, reshard):
    """Three micro-batches, with each of the ways to accumulate that FSDP2 has."""
    world, replicas = shape[0] * (shape[1] if len(shape) > 1 else 1), shape[0] if len(shape) > 1 else 1
    model, batch, found = Language(tied=False), batch_of("untied"), []
    workload, those = workload_of(model, batch), [ParameterGroup(one, reshard) for one in [("embedding",), *BLOCKS]]
    rules = Sharding((), replicas, micro_batches=3, **ACCUMULATED[how])
    with pretended(world):
        sharded(model, those, rules, shape)
        with noted(found):
            for _ in range(2):
                found.clear()
                for number in range(3):
                    last = number == 2
                    model.set_requires_gradient_sync(last or rules.reduce_each)
                    model.set_requires_all_reduce(last or rules.replicas_each)
                    model.set_reshard_after_backward(last or not rules.keep)
                    model(batch).sum().backward()
    assert found == predicted(workload, wrapped(workload, those, rules), world)


def predicted(workload, plan, world):
    """(kind, bytes, dtype) of each collective of the program."""
    rules = plan.sharding
    gathered = rules.gather_dtype or "float32"
    dtypes = dict.fromkeys(COLLECTIVES, rules.reduce_dtype or gathered) | {"all_gather": gathered}
    operations = lower(workload, plan, Pricing.free(world)).operations
    return [(one.kind, one.size, dtypes[one.kind]) for one in operations if one.kind in COLLECTIVES]


def test_a_difference_would_show():
    """Other rules make other collectives."""
    model, batch = Language(tied=False), batch_of("untied")
    workload = workload_of(model, batch)
    groups = [ParameterGroup(one) for one in BLOCKS]
    one = predicted(workload, wrapped(workload, groups, Sharding(())), 3)
    kept = [replace(group, reshard=False) for group in groups]
    ahead = [replace(group, backward_prefetch=2) for group in groups]
    for others, world in ((kept, 3), (ahead, 3), (groups[1:], 3), (groups, 4)):
        assert predicted(workload, wrapped(workload, others, Sharding(())), world) != one
