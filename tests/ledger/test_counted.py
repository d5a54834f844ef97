"""Profiles counted from code: their parameters, and what is assumed of their times."""

from __future__ import annotations

import pytest

from osfmodel.entities.files import profiles
from osfmodel.ledger.sources import counted


@pytest.mark.parametrize(
    ("build", "parameters", "tensors"),
    [
        (counted.resnet18_cifar10, 11_173_962, 62),
        (counted.deepspeech2, 41_187_968, 59),
        (counted.ncf, 1_602_657, 12),
    ],
)
def test_parameters_are_those_of_the_models(build, parameters, tensors):
    workload = build()
    assert workload.gradient_bytes == counted.FLOAT32 * parameters
    assert len(workload.gradients) == tensors
    assert workload.name.endswith("-reconstructed")
    assert "reconstructed" in workload.source.conditions


def test_a_smaller_stem_takes_a_quarter():
    base = {layer.name: layer for layer in profiles.load_workload("resnet18-reconstructed").layers}
    for layer in counted.resnet18_cifar10().layers:
        share = 0.25 if layer.name.split(".")[0] in ("conv1", "bn1") else 1
        assert layer.backward_time == share * base[layer.name].backward_time


def test_gradients_of_a_module_are_ready_together_from_the_output_on():
    gradients = counted.deepspeech2().gradients
    assert gradients.names[0] == "fc.0"
    assert gradients.names[-1] == "conv1.0"
    recurrent = [time for name, time in zip(gradients.names, gradients.ready_times, strict=True) if "rnn4." in name]
    assert len(set(recurrent[:8])) == 1


def test_recurrent_layers_take_most_of_the_time_and_embeddings_most_of_the_bytes():
    speech = counted.deepspeech2()
    recurrent = sum(layer.backward_time for layer in speech.layers if layer.name.startswith("rnn"))
    assert 0.8 < recurrent / speech.backward_time < 0.9
    ncf = counted.ncf()
    embedded = sum(layer.gradient_bytes for layer in ncf.layers if layer.name.startswith("embed"))
    assert embedded / ncf.gradient_bytes == pytest.approx(0.973, abs=1e-3)
