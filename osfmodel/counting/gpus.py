"""GPUs by data sheet: rates of matrix products by type of element, without sparsity, and memory.

A name is that by which people call a GPU. What PyTorch shows as one device is one entry: half an MI250X.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import suggestion

TERA, GIGA = 10**12, 10**9


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its data sheet has it.

    called:    name on the data sheet
    rates:     type of element -> floating-point operations per second of dense matrix products
    bandwidth: bytes per second of its memory
    memory:    bytes of its memory
    """

    called: str
    rates: Mapping[str, float]
    bandwidth: float
    memory: int
    __repr__ = brief

    def rate(self, dtype: str) -> float:
        """Operations per second in ``dtype``. Raises UsageError for one that it has no matrix units for."""
        if dtype not in self.rates:
            has = ", ".join(self.rates)
            raise UsageError(f"{self.called} has no matrix products in {dtype}: its data sheet has {has}")
        return self.rates[dtype]


def _gpu(called: str, gigabytes: float, bandwidth: float, **tera: float) -> Gpu:
    """A GPU; bandwidth in GB/s, rates in TFLOPS by short name of the type."""
    names = {"fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
    rates = MappingProxyType({names[short]: rate * TERA for short, rate in tera.items()})
    return Gpu(called, rates, bandwidth * GIGA, round(gigabytes * GIGA))


GPUS: Mapping[str, Gpu] = MappingProxyType({
    "k80": _gpu("Tesla K80, one of two", 12, 240, fp32=4.37),
    "p100": _gpu("Tesla P100 SXM2", 16, 732, fp32=10.6, fp16=21.2),
    "v100": _gpu("Tesla V100 SXM2 32GB", 32, 900, fp32=15.7, fp16=125),
    "v100-16gb": _gpu("Tesla V100 SXM2 16GB", 16, 900, fp32=15.7, fp16=125),
    "t4": _gpu("Tesla T4", 16, 320, fp32=8.1, fp16=65),
    "a100": _gpu("A100 SXM 80GB", 80, 2039, fp32=19.5, tf32=156, fp16=312, bf16=312),
    "a100-40gb": _gpu("A100 SXM 40GB", 40, 1555, fp32=19.5, tf32=156, fp16=312, bf16=312),
    "a100-64gb": _gpu("A100 SXM 64GB of Leonardo", 64, 1640, fp32=19.5, tf32=156, fp16=312, bf16=312),
    "a10g": _gpu("A10G", 24, 600, fp32=31.5, tf32=35, fp16=70, bf16=70),
    "l4": _gpu("L4", 24, 300, fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242.5),
    "l40s": _gpu("L40S", 48, 864, fp32=91.6, tf32=183, fp16=362, bf16=362, fp8=733),
    "rtx4090": _gpu("GeForce RTX 4090", 24, 1008, fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3),
    "h100": _gpu("H100 SXM", 80, 3350, fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9),
    "h100-pcie": _gpu("H100 PCIe", 80, 2000, fp32=51, tf32=378, fp16=756, bf16=756, fp8=1513),
    "gh200": _gpu("GH200 96GB", 96, 4000, fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9),
    "h200": _gpu("H200 SXM", 141, 4800, fp32=67, tf32=494.7, fp16=989.4, bf16=989.4, fp8=1978.9),
    "b200": _gpu("B200 of HGX", 180, 7700, fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500),
    "gb200": _gpu("GB200, one of its GPUs", 186, 8000, fp32=80, tf32=1250, fp16=2500, bf16=2500, fp8=5000),
    "mi250x": _gpu("Instinct MI250X, one of two", 64, 1638, fp32=47.9, fp16=191.5, bf16=191.5),
    "mi300x": _gpu("Instinct MI300X", 192, 5300, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9),
})  # fmt: skip
"""By the name that people use."""


def gpu_called(name: str) -> Gpu:
    """The GPU of this name, in any case. Raises UsageError for an unknown one."""
    found = GPUS.get(name.lower())
    if found is None:
        raise UsageError(f"unknown GPU {name!r}: {suggestion(name.lower(), GPUS)}")
    return found


def gpu_on_data_sheet(called: str) -> Gpu | None:
    """The GPU that its data sheet calls so, as sources of counted workloads do; None for any other name."""
    return next((gpu for gpu in GPUS.values() if gpu.called == called), None)
