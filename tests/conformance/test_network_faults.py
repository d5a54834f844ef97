"""Rules for every fault of a network: the tests run over their table."""

from __future__ import annotations

import re

import numpy as np
import pytest

from osfmodel.diagnosis.doctor.faults import NETWORK_FAULTS
from tests.measured_machines import MACHINES, measured_of


@pytest.mark.parametrize("name", NETWORK_FAULTS)
def test_it_is_described(name):
    fault = NETWORK_FAULTS[name]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert re.fullmatch(r"[a-z].*[^.]", fault.summary)
    assert re.fullmatch(r"[A-Z].*\.", fault.sentence("some words"))
    assert re.fullmatch(r"\S.*[^.]", fault.experiment)


@pytest.mark.parametrize("name", NETWORK_FAULTS)
def test_its_shifts_fit_the_curves_and_are_finite(name):
    for machine in MACHINES:
        measured = measured_of(machine)
        for variant in NETWORK_FAULTS[name].variants(measured):
            assert len(variant.shift) == sum(len(curve.sizes) for curve in measured.curves)
            assert np.isfinite(variant.shift).all()
            assert variant.noise >= 0
            assert variant.words


def test_each_occurs_on_some_machine():
    """Cliffs only where a measured curve has one, which tests/diagnosis/test_doctor.py has."""
    for name, fault in NETWORK_FAULTS.items():
        assert name == "cliff" or any(list(fault.variants(measured_of(machine))) for machine in MACHINES), name


def test_no_fault_of_a_network_shifts_what_stays_inside_a_node():
    measured = measured_of("node")
    for name in ("sockets", "contention", "slow-host"):
        assert list(NETWORK_FAULTS[name].variants(measured)) == []
