"""Rules for every ailment of a network: the tests run over their table."""

from __future__ import annotations

import re

import numpy as np
import pytest

from osfmodel.diagnosis.doctor.ailments import AILMENTS
from tests.patients import MACHINES, patient_of


@pytest.mark.parametrize("name", AILMENTS)
def test_it_is_described(name):
    ailment = AILMENTS[name]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert re.fullmatch(r"[a-z].*[^.]", ailment.summary)
    assert re.fullmatch(r"[A-Z].*\.", ailment.sentence("some words"))
    assert re.fullmatch(r"\S.*[^.]", ailment.experiment)


@pytest.mark.parametrize("name", AILMENTS)
def test_its_shifts_fit_the_curves_and_are_finite(name):
    for machine in MACHINES:
        patient = patient_of(machine)
        for variant in AILMENTS[name].variants(patient):
            assert len(variant.shift) == sum(len(curve.sizes) for curve in patient.curves)
            assert np.isfinite(variant.shift).all()
            assert variant.noise >= 0
            assert variant.words


def test_each_occurs_on_some_machine():
    """Cliffs only where a measured curve has one, which tests/diagnosis/test_doctor.py has."""
    for name, ailment in AILMENTS.items():
        assert name == "cliff" or any(list(ailment.variants(patient_of(machine))) for machine in MACHINES), name


def test_no_ailment_of_a_network_shifts_what_stays_inside_a_node():
    patient = patient_of("node")
    for name in ("sockets", "contention", "slow-host"):
        assert list(AILMENTS[name].variants(patient)) == []
