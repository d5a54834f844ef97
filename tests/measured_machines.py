"""Machines exactly as their data sheets say, for tests of ``osf doctor``."""

from __future__ import annotations

from osfmodel.cost import cost_of
from osfmodel.cost.clusters import load_cluster
from osfmodel.diagnosis.doctor.curves import curve_of
from osfmodel.diagnosis.doctor.faults import MeasuredMachine
from osfmodel.entities.cluster import Table

SIZES = tuple(2**octave for octave in range(10, 31))
MACHINES = {
    "ib": ("nccl:h100x8,400Gbps,ib", (16, 32)),
    "efa": ("nccl:a100x8,50Gbps,efa", (16,)),
    "node": ("nccl:h100x8", (8,)),
    "hosts": ("ring:50us,1Gbps", (4,)),
    "groups": ("ring:50us,1Gbps", (2, 4)),
}


def measured_of(name: str) -> MeasuredMachine:
    """A machine exactly as its data sheet says."""
    words, counts = MACHINES[name]
    against = load_cluster(words)
    prices = {workers: cost_of(against, workers) for workers in counts}
    times = {workers: tuple(float(prices[workers](size)) for size in SIZES) for workers in counts}
    tables = [Table(w, SIZES, row, slowest=tuple(1.2 * time for time in row)) for w, row in times.items()]
    return MeasuredMachine(against, tuple(curve_of("made-up", table, against) for table in tables))
