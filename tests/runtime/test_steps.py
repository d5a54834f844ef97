"""From measured iterations to layers, without PyTorch: times by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from osfmodel import Layer, Workload
from osfmodel.runtime.profiler.conditions import Finding, agreement, doubts
from osfmodel.runtime.profiler.steps import (
    INPUT,
    LOSS,
    ProfiledIteration,
    Ready,
    Tensor,
    alike,
    batch_fit,
    layers_of,
    spread,
    uneven,
    with_fit,
)

TENSORS = {
    "a.weight": Tensor("a", 400, "float32"),
    "a.bias": Tensor("a", 40, "float32"),
    "b.weight": Tensor("b", 200, "bfloat16"),
    "never": Tensor("never", 8, "float32"),
}
ENDS = (("a", 2), ("b", 3), ("never", 4), ("b", 6))
READY = (("b.weight", 9), ("a.bias", 10), ("a.weight", 14))


def step(scale=1, hooked=True, ready=READY, ends=ENDS):
    """A step whose forward takes 7, its backward 8 and its update 2, all times ``scale``."""
    times = tuple(Ready(name, scale * time, scale * time / 2) for name, time in ready) if hooked else ()
    marks = tuple((name, scale * time) for name, time in ends) if hooked else ()
    return ProfiledIteration(hooked, marks, times, scale * 7, scale * 15, scale * 17)


def by_name(steps, activations=None, device_clock=False):
    """The layers by name."""
    return {layer.name: layer for layer in layers_of(steps, TENSORS, activations, device_clock)}


def test_layers_stand_in_reverse_ready_order():
    names = [layer.name for layer in layers_of([step()], TENSORS, None, False)]
    assert names == [INPUT, "a.weight", "a.bias", "b.weight", LOSS]


def test_forward_goes_from_the_end_of_one_module_to_the_end_of_the_next():
    """a 2; b 1, and at its second call 3 with what the module without a gradient took; 1 is left for the loss."""
    times = {name: layer.forward_time for name, layer in by_name([step()]).items()}
    assert times == {INPUT: 0, "a.weight": 0, "a.bias": 2, "b.weight": 4, LOSS: 1}


def test_backward_goes_from_one_gradient_to_the_next():
    times = {name: layer.backward_time for name, layer in by_name([step()]).items()}
    assert times == {INPUT: 1, "a.weight": 4, "a.bias": 1, "b.weight": 2, LOSS: 0}


def test_layers_add_up_exactly_to_the_median_step():
    scales = [Fraction(1), Fraction(3, 7), Fraction(9, 4), Fraction(11, 10), Fraction(50)]
    layers = layers_of([step(scale) for scale in scales], TENSORS, None, False)
    assert sum(Fraction(layer.forward_time) for layer in layers) == pytest.approx(7 * 1.1, rel=1e-15)
    assert sum(Fraction(layer.backward_time) for layer in layers) == pytest.approx(8 * 1.1, rel=1e-15)


def test_sizes_types_and_ready_times_come_out_as_they_went_in():
    workload = Workload("w", layers_of([step()], TENSORS, None, True))
    assert workload.gradients.names == ("b.weight", "a.bias", "a.weight")
    assert workload.gradients.sizes == (200, 40, 400)
    assert workload.gradients.dtypes == ("bfloat16", "float32", "float32")
    assert workload.gradients.ready_times == (9, 10, 14)
    assert workload.gradients.enqueue_times == (4.5, 5, 7)


def test_activations_go_where_the_time_of_their_module_goes():
    layers = by_name([step()], {"a": 5, "b": 7, LOSS: 1, "never": 2})
    assert {name: layer.activation_bytes for name, layer in layers.items()} == {
        INPUT: 0, "a.weight": 0, "a.bias": 5, "b.weight": 7, LOSS: 3,
    }  # fmt: skip
    assert {layer.activation_bytes for layer in by_name([step()]).values()} == {None}


def test_only_the_steps_of_the_commonest_order_count():
    other = step(ready=READY[::-1])
    steps = [step(), other, step(2), step(hooked=False)]
    assert alike(steps) == [steps[0], steps[2]]
    assert alike([step(hooked=False)]) == []


def test_spread_and_outliers():
    assert spread([3.0]) == 0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert uneven([1.0, 1.0, 1.0, 1.6, 1.5]) == 1


@pytest.mark.parametrize(("scale", "told"), [(1.02, ""), (1.05, "+5.0%"), (0.9, "-10.0%")])
def test_a_disagreement_beyond_three_per_cent_is_told(scale, told):
    steps = [step(hooked=False), step(scale)]
    sentence = agreement(Finding(steps, alike(steps), TENSORS, None, []))
    assert (told in sentence) if told else not sentence


def workload(batch_size, forward, backward):
    return Workload(f"b{batch_size}", (Layer("a", forward, backward, 4),), batch_size)


def test_time_against_batch():
    found = batch_fit([workload(size, 1 + size, 1 + 2 * size) for size in (2, 4, 8)])
    assert found.fixed == pytest.approx(2)
    assert found.per_sample == pytest.approx(3)
    assert found.worst == pytest.approx(0, abs=1e-9)
    text = with_fit(workload(2, 1, 1), found).source.conditions
    assert text.endswith("forward and backward at batch 2, 4, 8: 2.000 s + 3.000 s per sample, worst residual 0.0%")
    assert "which two sizes fit exactly" in str(batch_fit([workload(2, 1, 1), workload(4, 2, 2)]))
    assert batch_fit([workload(2, 1, 1)]) is None


def test_steps_that_do_not_repeat_are_told():
    def told(*scales):
        counted = [step(scale) for scale in scales]
        return doubts(Finding([*counted, step(1, hooked=False)], counted, TENSORS, None, []))

    assert told(1, 1, 1.01, 1, 1) == []
    assert "steps spread by 96% (quartiles over median)" in told(0.5, 0.5, 1, 1.46, 1.46)[-1]
