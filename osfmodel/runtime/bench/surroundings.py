"""Conditions of a measurement for the cluster file: ranks, backend, versions, network."""

from __future__ import annotations

import os
from dataclasses import replace

from osfmodel.runtime.bench.measured_cluster import Surroundings
from osfmodel.runtime.job.collective_job import CollectiveJob


def unmet(network: str | None) -> Surroundings:
    """Conditions known before the ranks have met; ``network`` None: the interface that the library is told to use."""
    return Surroundings(2, 1, "", network or _interface(), "")


def _interface() -> str:
    names = [os.environ.get(name) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
    chosen = next((name for name in names if name), None)
    return "interface as the library chose" if chosen is None else f"interface {chosen}"


def surroundings_of(job: CollectiveJob, surroundings: Surroundings) -> Surroundings:
    """``surroundings`` with the properties of the ranks that met."""
    import torch

    versions, gpu = f"torch {torch.__version__}", surroundings.gpu
    if job.backend == "nccl":
        gpu = torch.cuda.get_device_name()
        versions += f", NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, {gpu}"
    found = replace(surroundings, workers=job.workers, per_host=job.per_host, backend=job.backend)
    return replace(found, versions=versions, gpu=gpu)
