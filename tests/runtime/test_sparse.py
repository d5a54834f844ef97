"""Sparse buckets choose, keep and send entries: single tensors, without a network."""

from __future__ import annotations

import os

import numpy as np
import pytest

from osfmodel import Block, Bucket, Layer, Workload
from osfmodel.engine.sparse import Sparsity
from osfmodel.entities.errors import UsageError

if os.environ.get("OSFMODEL_REQUIRE_TORCH"):
    import torch
else:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

from osfmodel.runtime.executor.error_feedback import Mirror, Packing, Residual, flat_of
from osfmodel.runtime.executor.separate import Groups

TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def drawn(*shape, seed=0, dtype=torch.float64):
    """Random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def like(tensor):
    """Its shape, without memory."""
    return torch.empty_like(tensor, device="meta")


def mirror_of(parameter, rate=0.25):
    """A mirror of a parameter that SGD updates, and the optimizer."""
    optimizer = torch.optim.SGD([parameter], lr=rate)
    groups = Groups(optimizer)
    groups.look()
    return Mirror("weight", parameter, like(parameter), groups), optimizer, groups


@pytest.mark.parametrize("count", [1, 7, 60])
def test_the_largest_are_chosen_and_the_rest_is_kept(count):
    gradient = drawn(5, 12).t()
    residual = Residual(gradient, like(gradient))
    residual.add(gradient, 0.5)
    values, places = residual.choose(count)
    whole = 0.5 * flat_of(gradient).numpy()
    assert set(places.tolist()) == set(np.argsort(-np.abs(whole), kind="stable")[:count].tolist())
    assert values.tolist() == whole[places.numpy()].tolist()
    kept = flat_of(residual.kept).numpy()
    assert kept[places.numpy()].tolist() == [0.0] * count
    kept[places.numpy()] = values
    assert kept.tolist() == whole.tolist()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", ["residual", "mirror"])
def test_nan_and_infinity_are_chosen_first(wrong, kind):
    """NaN and infinity are thus noticed at any density."""
    gradient = drawn(100).index_fill(0, torch.tensor([42]), wrong)
    parameter = torch.nn.Parameter(drawn(100, seed=1))
    unsent = Residual(gradient, like(gradient)) if kind == "residual" else mirror_of(parameter)[0]
    unsent.add(gradient, 0.5)
    values, places = unsent.choose(1)
    assert places.tolist() == [42]
    assert not bool(values.isfinite().any())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("density", [1e-9, 0.1, 0.5, 1.0])
def test_messages_are_as_long_as_their_entries_and_are_read_as_written(dtype, density):
    """A value and 4 bytes for each, up to a multiple of 8; sums over ranks are those of numpy, in their order."""
    sizes = (1, 3, 12, 101)
    packing = Packing(sizes, density, dtype)
    assert packing.counts == [max(1, int(np.ceil(density * size))) for size in sizes]
    assert 0 <= packing.bytes - sum(packing.counts) * (dtype.itemsize + 4) < 8
    assert packing.bytes % 8 == 0
    whole = torch.empty(3, packing.bytes, dtype=torch.uint8)
    wanted = [torch.zeros(size, dtype=dtype) for size in sizes]
    for rank in range(3):
        for number, size in enumerate(sizes):
            residual = Residual(wanted[number], like(wanted[number]))
            residual.add(drawn(size, seed=10 * rank + number, dtype=dtype), 1)
            values, places = residual.choose(packing.counts[number])
            packing.put(whole[rank], number, values, places)
            wanted[number][places] += values
    assert list(packing.faults(whole.flatten())) == []
    for number, mean in enumerate(wanted):
        assert torch.equal(packing.mean(whole.flatten(), number, like(mean)), mean)
    packing.put(whole[1], 2, torch.full((packing.counts[2],), torch.inf, dtype=dtype), torch.arange(packing.counts[2]))
    assert list(packing.faults(whole.flatten())) == [(1, 2)]


def test_places_are_wide_where_tensors_are_long():
    """Tensors of 2**31 elements, of which next to none is sent."""
    assert Packing([(1 << 31) - 1], 1e-9, torch.float32).bytes == 3 * 8
    assert Packing([1 << 31], 1e-9, torch.float32).bytes == 3 * 12 + 4


def test_a_mirror_is_the_weights_less_what_was_not_sent():
    """Through an update and a change of the rate."""
    parameter = torch.nn.Parameter(drawn(30, seed=1))
    mirror, optimizer, groups = mirror_of(parameter)
    residual = Residual(parameter.detach(), like(parameter))
    for step, rate in enumerate([0.25, 0.25, 0.1, 0.7]):
        optimizer.param_groups[0]["lr"] = rate
        groups.look()
        gradient = drawn(30, seed=2 + step)
        for unsent in (mirror, residual):
            unsent.add(gradient, 0.5)
        values, places = mirror.choose(4)
        wanted, others = residual.choose(4)
        assert places.tolist() == others.tolist()
        assert values.numpy() == pytest.approx(wanted.numpy(), rel=1e-12)
        mirror.part()
        with torch.no_grad():
            parameter.sub_(drawn(30, seed=20 + step))
        mirror.join()
        held = (parameter.detach() - mirror.kept) / rate
        assert held.numpy() == pytest.approx(residual.kept.numpy(), abs=1e-13)


def test_a_mirror_knows_weights_that_were_changed_by_hand():
    parameter = torch.nn.Parameter(drawn(30))
    mirror, _, _ = mirror_of(parameter)
    mirror.add(drawn(30), 1)
    with torch.no_grad():
        parameter.zero_()
    for call in (lambda: mirror.add(drawn(30), 1), mirror.part):
        with pytest.raises(UsageError, match="'weight' was changed otherwise"):
            call()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("density", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("sizes", [(1,), (7, 100, 3), (1000, 11)])
def test_a_message_has_the_bytes_that_it_is_priced_by(dtype, density, sizes):
    name = str(dtype).removeprefix("torch.")
    layers = tuple(Layer(f"l{i}", 1, 1, size * dtype.itemsize, name) for i, size in enumerate(sizes))
    bucket = Bucket(tuple(Block(layer.name, 0, layer.gradient_bytes) for layer in layers), density=density)
    assert Packing(sizes, density, dtype).bytes == Sparsity(Workload("w", layers)).sent_bytes(bucket)
