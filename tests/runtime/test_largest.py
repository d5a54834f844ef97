"""The largest entries, however they are looked for: against a search of all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from osfmodel.runtime.executor.error_feedback import PIECE, SAMPLE, largest  # noqa: E402

NAN, INF = float("nan"), float("inf")


def found(values, count):
    return largest(lambda part: values[part].abs(), values.numel(), count)


def drawn(kind, elements):
    generator = torch.Generator().manual_seed(elements)
    values = torch.randn(elements, generator=generator)
    if kind == "equal":
        return torch.ones(elements)
    if kind == "few":
        return values.round()
    if kind == "sorted":
        return values.sort().values
    if kind == "zeros":
        return torch.where(values > 2.5, values, torch.zeros(()))
    if kind == "nothing":
        return torch.zeros(elements)
    return values


@pytest.mark.parametrize("kind", ["random", "equal", "few", "sorted", "zeros", "nothing"])
@pytest.mark.parametrize("elements", [1, 2, 100, 8 * SAMPLE + 3, PIECE, 3 * PIECE + 17])
@pytest.mark.parametrize("density", [1e-6, 0.01, 0.1, 0.6, 1.0])
def test_they_are_those_of_a_search_of_all(kind, elements, density):
    values = drawn(kind, elements)
    count = max(1, int(density * elements))
    places = found(values, count)
    assert len(set(places.tolist())) == count
    assert values[places].abs().sort().values.tolist() == values.abs().topk(count).values.sort().values.tolist()


@pytest.mark.parametrize("elements", [10, 3 * PIECE])
def test_nan_and_infinity_do_not_stay_hidden(elements):
    values = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    values[3], values[7] = NAN, -INF
    assert sorted(found(values, 2).tolist()) == [3, 7]
    assert {3, 7} <= set(found(values, 5).tolist())


def test_a_misleading_sample_does_no_harm():
    """Large where the sample looks, and nowhere else; then the other way round."""
    elements = 20 * SAMPLE
    step = (elements // SAMPLE) | 1
    for scale in (100.0, 0.0):
        values = torch.rand(elements, generator=torch.Generator().manual_seed(2)) + 1
        values[::step] *= scale
        count = elements // 100
        assert set(found(values, count).tolist()) == set(values.topk(count).indices.tolist())


@pytest.mark.parametrize("share", [0.0, 0.003, 0.02, 0.4])
def test_memory_is_a_part_of_the_tensors_also_where_little_is_not_zero(share):
    """An embedding has gradients in few rows: those that are 0 are not gathered."""
    elements, largest_made = 8 * PIECE, 0
    values = torch.randn(elements, generator=torch.Generator().manual_seed(3))
    values[torch.rand(elements, generator=torch.Generator().manual_seed(4)) > share] = 0

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest_made
            made = function(*args, **kwargs or {})
            for one in made if isinstance(made, list | tuple) else [made]:
                memory = one.untyped_storage() if isinstance(one, torch.Tensor) else values.untyped_storage()
                if memory.data_ptr() != values.untyped_storage().data_ptr():
                    largest_made = max(largest_made, memory.nbytes())
            return made

    with Watched():
        places = found(values, elements // 100)
    assert len(set(places.tolist())) == elements // 100
    assert largest_made <= max(share * 1.1 * 8, 0.6) * elements  # a place of eight bytes for each that is not 0
