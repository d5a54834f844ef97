"""GPUs: what their data sheets say, the machines that have them, and the names that people and drivers give them.

A name is that by which people call a GPU. What PyTorch shows as one device is one entry: half an MI250X. A new GPU is
one row of GPUS, and a word of its generation in GENERATIONS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from osfmodel.entities.display import brief
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import suggestion

TERA, GIGA = 10**12, 10**9
GENERATIONS: Mapping[str, str] = {
    "kepler": r"k[248]0",
    "pascal": r"p100|p40|p4|1080( ?ti)?",
    "volta": r"v100s?|titan v",
    "turing": r"t4|20[678]0( ?ti| super)?|rtx [68]000",
    "ampere": r"a100|a10g?|a16|a30|a40|a[456]000|a800|30[6789]0( ?ti)?",
    "ada": r"l4|l20|l40s?|40[6789]0( ?ti)?|6000 ada",
    "hopper": r"h100|h200|h800|h20|gh200",
    "blackwell": r"b[1-3]00|gb[23]00|rtx pro [456]000|50[789]0",
    "cdna": r"mi[0-9]{2,3}[ax]?",
}
"""Generation -> pattern of its GPUs' names, in lower case."""


class HostLink(NamedTuple):
    """A GPU's part of the machine around it.

    link:   bytes per second between its memory and pinned memory of the host, each way
    memory: bytes per second of the host's memory, of all GPUs alike
    """

    link: float
    memory: float


HOSTS: Mapping[int, HostLink] = MappingProxyType({
    0: HostLink(25e9, 51.2e9),
    3: HostLink(12e9, 19.2e9),
    4: HostLink(25e9, 51.2e9),
    5: HostLink(55e9, 76.8e9),
})  # fmt: skip
"""By generation of PCIe, 16 lanes for each GPU; 0: not known, as 4. Copies reach 80 to 88 % of the raw 15.8, 31.5 and
63 GB/s (nvbandwidth on PCIe 5, in NVIDIA's blog: 55.6). Memory, of data sheets: DGX-1 (2 x 4 channels of DDR4-2400),
DGX A100 (2 x 8 of DDR4-3200), DGX H100 (2 x 8 of DDR5-4800), each among 8 GPUs."""
GH200, GB200 = HostLink(384e9, 384e9), HostLink(256e9, 256e9)
"""Grace by NVLink-C2C (450 GB/s each way), bounded by its LPDDR5X: 384 GB/s of 480 GB, 512 GB/s for two Blackwells."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its data sheet has it, and the machines that usually have it.

    called:     name on the data sheet
    rates:      type of element -> floating-point operations per second of dense matrix products
    bandwidth:  bytes per second of its memory
    memory:     bytes of its memory
    reported:   of that, as nvidia-smi or rocm-smi report with error correction on
    fabric:     inside a node
    link:       bytes per second of each GPU over NVLink or xGMI, in NCCL's accounting; 0 without
    nvls:       whether the switch can add up
    pcie:       generation of PCIe of its hosts
    tuned_as:   generation whose constants NCCL's tuner takes
    nic, sharing: bytes per second of the fastest usual NIC, and GPUs that share it where a node has 8
    power:      as part of that of the same chip elsewhere: what clocks in training go by
    host:       its part of the machine
    """

    called: str
    rates: Mapping[str, float]
    bandwidth: float
    memory: int
    reported: int
    fabric: str
    link: float
    nvls: bool
    pcie: int
    tuned_as: str
    nic: float
    sharing: int
    power: float = 1.0
    host: HostLink = HOSTS[0]
    __repr__ = brief

    def rate(self, dtype: str) -> float:
        """Operations per second in ``dtype``. Raises UsageError for one that it has no matrix units for."""
        if dtype not in self.rates:
            named = any(one is self for one in GPUS.values())  # not measured
            able = [name for name, one in GPUS.items() if named and dtype in one.rates]
            others = f"; GPUs that have them: {', '.join(able)}" if 0 < len(able) <= MOST_NAMED else ""
            has = ", ".join(self.rates)
            raise UsageError(f"{self.called} has no matrix products in {dtype}: it has {has}{others}")
        return self.rates[dtype]

    @property
    def clock(self) -> float:
        """The clock that its power allows, over that of the chip elsewhere: by the cube root, as voltage follows it."""
        return float(self.power ** (1 / 3))

    def network(self, gpus: int) -> float:
        """Bytes per second of network of each of ``gpus`` GPUs in usual machines."""
        return self.nic / (self.sharing if gpus > 4 else 1)


Node = tuple[str, str, float, int]
"""(NCCL's generation, fabric, GB/s of each GPU, generation of PCIe) of a node."""
PCIE3, PCIE4 = ("volta", "pcie", 0, 3), ("ampere", "pcie", 0, 4)
MESH = ("volta", "nvlink-mesh", 132, 3)
A100, A800 = ("ampere", "nvswitch", 240, 4), ("ampere", "nvswitch", 160, 4)
H100, H800 = ("hopper", "nvswitch", 370, 5), ("hopper", "nvswitch", 165, 5)
B200 = ("blackwell", "nvswitch", 720, 5)
CDNA = ("cdna", "nvswitch", 336, 5)
"""Nodes of several GPUs."""


def pairs(generation: str, link: float, pcie: int = 4) -> Node:
    """A node whose GPUs are joined two by two, by bridges of ``link`` GB/s each way."""
    return generation, "nvlink-pairs", link, pcie


def _gpu(called: str, sheet: tuple[float, float, int], node: Node, nic: tuple[float, int], /, **tera: float) -> Gpu:
    """A GPU; ``sheet``: GB, GB/s, MiB reported; ``nic``: Gbit/s, GPUs that share it; rates in TFLOPS by short type."""
    names = {
        "fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8", "mxfp8": "mxfp8",
        "nvfp4": "nvfp4",
    }  # fmt: skip
    if unknown := tera.keys() - names.keys():
        raise ValueError(f"{called}: rates in {', '.join(unknown)}, which is none of {', '.join(names)}")
    half = {"fp16": tera["bf16"]} if "bf16" in tera and "fp16" not in tera else {}
    known = {**tera, **half}
    rates = {name: known[short] * TERA for short, name in names.items() if short in known}
    generation, fabric, link, pcie = node
    nvls = fabric == "nvswitch" and generation in ("hopper", "blackwell") and "GH200" not in called
    return Gpu(
        called, MappingProxyType(rates), sheet[1] * GIGA, round(sheet[0] * GIGA), sheet[2] << 20,
        fabric, link * 1e9, nvls, pcie, generation, nic[0] * GIGA / 8, nic[1], host=HOSTS[pcie],
    )  # fmt: skip


GPUS: Mapping[str, Gpu] = MappingProxyType({
    "k80": _gpu("Tesla K80, one of two", (12, 240, 11_441), PCIE3, (100, 2), fp32=4.37),
    "p100": _gpu("Tesla P100 SXM2", (16, 732, 16_276), PCIE3, (100, 2), fp32=10.6, fp16=21.2),
    "v100": _gpu("Tesla V100 SXM2 32GB", (32, 900, 32_768), MESH, (100, 2), fp32=15.7, fp16=125),
    "v100-16gb": _gpu("Tesla V100 SXM2 16GB", (16, 900, 16_384), MESH, (100, 2), fp32=15.7, fp16=125),
    "v100-pcie": _gpu("Tesla V100 PCIe 32GB", (32, 900, 32_768), PCIE3, (100, 2), fp32=14, fp16=112),
    "t4": _gpu("Tesla T4", (16, 320, 15_360), PCIE3, (50, 4), fp32=8.1, fp16=65),
    "rtx2080ti":
        _gpu("GeForce RTX 2080 Ti", (11, 616, 11_264), ("volta", "host", 0, 3), (100, 2), fp32=13.4, fp16=53.8),
    "a100": _gpu("A100 SXM 80GB", (80, 2039, 81_920), A100, (200, 1), fp32=19.5, tf32=156, bf16=312),
    "a100-40gb": _gpu("A100 SXM 40GB", (40, 1555, 40_960), A100, (200, 1), fp32=19.5, tf32=156, bf16=312),
    # 124 multiprocessors of the chip, where the others have 108: rates are 124/108 of theirs.
    "a100-64gb": _gpu("A100 SXM 64GB of Leonardo", (64, 1640, 65_536), A100, (200, 1), fp32=22.4, tf32=179, bf16=358),
    "a100-pcie":
        _gpu("A100 PCIe 80GB", (80, 1935, 81_920), pairs("ampere", 240), (200, 2), fp32=19.5, tf32=156, bf16=312),
    "a100-pcie-40gb":
        _gpu("A100 PCIe 40GB", (40, 1555, 40_960), pairs("ampere", 240), (200, 2), fp32=19.5, tf32=156, bf16=312),
    "a800": _gpu("A800 SXM 80GB", (80, 2039, 81_920), A800, (200, 1), fp32=19.5, tf32=156, bf16=312),
    "a30": _gpu("A30", (24, 933, 24_576), pairs("ampere", 80), (200, 2), fp32=10.3, tf32=82, bf16=165),
    "a40": _gpu("A40", (48, 696, 46_068), pairs("ampere", 48), (200, 2), fp32=37.4, tf32=74.8, bf16=149.7),
    "a10": _gpu("A10", (24, 600, 23_028), PCIE4, (100, 4), fp32=31.2, tf32=62.5, bf16=125),
    "a10g": _gpu("A10G", (24, 600, 23_028), ("ampere", "host", 0, 4), (100, 4), fp32=31.5, tf32=35, bf16=70),
    "rtx-a6000": _gpu("RTX A6000", (48, 768, 49_140), pairs("ampere", 48), (100, 2), fp32=38.7, tf32=77.4, bf16=154.8),
    "rtx3090":
        _gpu("GeForce RTX 3090", (24, 936, 24_576), ("ampere", "host", 0, 4), (100, 2), fp32=35.6, tf32=35.6, bf16=71),
    "l4": _gpu("L4", (24, 300, 23_034), PCIE4, (100, 2), fp32=30.3, tf32=60, bf16=121, fp8=242.5),
    "l20": _gpu("L20", (48, 864, 46_068), PCIE4, (200, 1), fp32=59.8, tf32=59.8, bf16=119.5, fp8=239),
    "l40": _gpu("L40", (48, 864, 46_068), PCIE4, (200, 1), fp32=90.5, tf32=90.5, bf16=181, fp8=362),
    "l40s": _gpu("L40S", (48, 864, 46_068), PCIE4, (200, 1), fp32=91.6, tf32=183, bf16=362, fp8=733),
    "rtx-6000-ada":
        _gpu("RTX 6000 Ada", (48, 960, 49_140), PCIE4, (200, 2), fp32=91.1, tf32=182.1, bf16=364.2, fp8=728.5),
    "rtx4090": _gpu(
        "GeForce RTX 4090", (24, 1008, 24_564), ("ampere", "host", 0, 4), (200, 2),
        fp32=82.6, tf32=82.6, bf16=165.2, fp8=330.3,
    ),
    "h20": _gpu("H20 SXM", (96, 4000, 97_871), H100, (400, 1), fp32=44, tf32=74, bf16=148, fp8=296),
    "h800": _gpu("H800 SXM", (80, 3350, 81_559), H800, (400, 1), fp32=67, tf32=494.7, bf16=989.4, fp8=1978.9),
    "h100": _gpu("H100 SXM", (80, 3350, 81_559), H100, (400, 1), fp32=67, tf32=494.7, bf16=989.4, fp8=1978.9),
    "h100-96gb": replace(
        _gpu("H100 SXM 96GB", (96, 2400, 97_871), H100, (400, 1), fp32=67, tf32=494.7, bf16=989.4, fp8=1978.9),
        power=500 / 700,
    ),
    "h100-pcie":
        _gpu("H100 PCIe", (80, 2000, 81_559), pairs("hopper", 240, 5), (400, 1), fp32=51, tf32=378, bf16=756, fp8=1513),
    "h100-nvl":
        _gpu(
            "H100 NVL", (94, 3938, 95_830), pairs("hopper", 240, 5), (400, 1), fp32=60, tf32=417.5, bf16=835.5,
            fp8=1671,
        ),
    "gh200": replace(
        _gpu("GH200 96GB", (96, 4000, 97_871), H100, (400, 1), fp32=67, tf32=494.7, bf16=989.4, fp8=1978.9), host=GH200
    ),
    "h200": _gpu("H200 SXM", (141, 4800, 143_771), H100, (400, 1), fp32=67, tf32=494.7, bf16=989.4, fp8=1978.9),
    "h200-nvl":
        _gpu(
            "H200 NVL", (141, 4800, 143_771), pairs("hopper", 370, 5), (400, 1), fp32=60, tf32=417.5, bf16=835.5,
            fp8=1671,
        ),
    "b200": _gpu(
        "B200 of HGX", (180, 7700, 183_359), B200, (800, 1), fp32=75, tf32=1125, bf16=2250, fp8=4500,
        mxfp8=4500, nvfp4=9000,
    ),
    "gb200": replace(
        _gpu(
            "GB200, one of its GPUs", (186, 8000, 189_471), B200, (800, 1), fp32=80, tf32=1250, bf16=2500, fp8=5000,
            mxfp8=5000, nvfp4=10000,
        ),
        host=GB200,
    ),
    "b300": _gpu(
        "B300 of HGX", (270, 7700, 275_040), B200, (800, 1), fp32=75, tf32=1125, bf16=2250, fp8=4500,
        mxfp8=4500, nvfp4=13500,
    ),
    "gb300": replace(
        _gpu(
            "GB300, one of its GPUs", (279, 8000, 284_208), B200, (800, 1), fp32=80, tf32=1250, bf16=2500, fp8=5000,
            mxfp8=5000, nvfp4=15000,
        ),
        host=GB200,
    ),
    "rtx-pro-6000": _gpu(
        "RTX PRO 6000 Blackwell Server", (96, 1597, 97_887), ("blackwell", "pcie", 0, 5), (400, 1),
        fp32=120, tf32=251.9, bf16=503.8, fp8=1007.6,
    ),
    "rtx5090": _gpu(
        "GeForce RTX 5090", (32, 1792, 32_607), ("blackwell", "host", 0, 5), (200, 2),
        fp32=104.8, tf32=104.8, bf16=209.5, fp8=419,
    ),
    "mi250x": _gpu(
        "Instinct MI250X, one of two", (64, 1638, 65_520), ("cdna", "nvswitch", 72, 4), (200, 2), fp32=47.9, bf16=191.5
    ),
    "mi300x":
        _gpu("Instinct MI300X", (192, 5300, 196_592), CDNA, (400, 1), fp32=163.4, tf32=653.7, bf16=1307.4, fp8=2614.9),
    "mi325x":
        _gpu("Instinct MI325X", (256, 6000, 262_128), CDNA, (400, 1), fp32=163.4, tf32=653.7, bf16=1307.4, fp8=2614.9),
    "mi355x": _gpu(
        "Instinct MI355X", (288, 8000, 294_896), ("cdna", "nvswitch", 403, 5), (400, 1), fp32=157.3, bf16=2516.6,
        fp8=5033.2, mxfp8=5033.2,
    ),
})  # fmt: skip
"""By the name that people use, from data sheets: rates without sparsity, those of GeForce with float32 sums.
mxfp8 and nvfp4 stand where training libraries run them: data-centre Blackwell, and mxfp8 on MI355X.

NVLink: TOPO, V100 6 links of 22 GB/s (NCCL 2.8 to 2.12; 20 later), A100 12 of 20 (as bridges of A100 PCIe), A800 8 of
them, A30 4 of 20, A40 and RTX A6000 4 of 12, Hopper 18 of 20.6 (H800 8; bridges of H100 PCIe and NVL 12 of 20, of H200
NVL 18), Blackwell 18 of 40.1 (rounded, as in TORCH). A GH200 node of 4 joins all pairs, with 18 links a GPU. xGMI:
RCCL, MI300X 7 of 48, MI250X (a GPU is half of one) 2 of 36 to its neighbours in a ring, MI355X 7 of 57.6, by its data
sheet; no collective of them was compared. P100, T4 and Ada have the constants of the generation that TUNING gives their
compute capability. Without peer access: GeForce, and A10G in cloud machines. H20's NVLink is H100's.

NICs: DGX-1 (4 x 100 Gb/s), DGX A100 (8 x 200), H100 and H200 (8 x 400), B200 to GB300 (400 to 800 a GPU). No price
depends on them."""
MOST_NAMED = 8
"""Number of GPUs up to which a refusal names them."""
MAKERS = {"nvidia", "amd", "tesla", "geforce", "instinct", "quadro", "gpu", "graphics"}
"""Words of a driver's name that say nothing of which GPU it is."""
FORMS = r"sxm[0-9]?|nvl[0-9]+|hbm[0-9]e?|oam|dgx|hgx|server|workstation|edition|blackwell|generation|max|q|vf|superchip"
"""Words for form factor or edition, which do not change the entry."""
HOST_MEMORY = {"gh200": {"480gb", "120gb"}}
"""Memory of the processor beside a GPU, which drivers put into its name."""


def gpu_name(text: str) -> str:
    """The name in GPUS of a GPU as people or drivers write it, such as "NVIDIA A100-SXM4-40GB"; "" for an unknown one.

    What a name says of memory and slot picks the entry: ``A100 40GB PCIe`` is ``a100-pcie-40gb``.
    """
    return _named(text.lower())


@lru_cache(maxsize=2**10)
def _named(text: str) -> str:
    words = [word for word in re.findall(r"[a-z0-9]+", text) if word not in MAKERS]
    joined = "".join(words)
    exact = {re.sub(r"[^a-z0-9]", "", name): name for name in GPUS}
    for whole in (joined, f"rtx{joined}"):
        if whole in exact:
            return exact[whole]
    starts = [name for short, name in exact.items() if joined.startswith(short) and _split(words, short) is not None]
    if not starts:
        return ""
    base = max(starts, key=len)
    left = _split(words, re.sub(r"[^a-z0-9]", "", base)) or []
    sizes = [word for word in left if re.fullmatch(r"[0-9]{2,3}gb?", word) and word not in HOST_MEMORY.get(base, ())]
    slots = [word for word in left if word in ("pcie", "nvl")]
    if any(word not in (*sizes, *slots) and not _neutral(base, word) for word in left) or len(sizes) > 1:
        return ""
    found = f"{base}-{slots[0]}" if slots and f"{base}-{slots[0]}" in GPUS else base
    if slots and found == base and GPUS[base].fabric not in ("pcie", "host"):
        return ""
    for size in sizes:
        gigabytes = int(size.rstrip("gb"))
        if f"{found}-{gigabytes}gb" in GPUS:
            found = f"{found}-{gigabytes}gb"
        elif not ROOM[0] <= GPUS[found].memory / GIGA / gigabytes <= ROOM[1]:
            return ""
    return found


ROOM = (0.9, 1.1)
"""Smallest and largest ratio of the memory of an entry to that in a name that are taken for the same."""


def _split(words: list[str], short: str) -> list[str] | None:
    """The words behind those that make up ``short``; None unless some words do."""
    for count in range(1, len(words) + 1):
        if "".join(words[:count]) == short:
            return words[count:]
    return None


def _neutral(base: str, word: str) -> bool:
    return bool(re.fullmatch(FORMS, word)) or word in HOST_MEMORY.get(base, ())


def gpu_called(text: str) -> Gpu:
    """The GPU of this name, as :func:`gpu_name` reads it. Raises UsageError for an unknown one."""
    found = gpu_name(text)
    if not found:
        measure = "measure any other with osf bench --kernels -o my-gpu.json, and give that file as the GPU"
        raise UsageError(f"unknown GPU {text!r}: {suggestion(text.lower(), GPUS)}; {measure}")
    return GPUS[found]


def same_chip(one: str, other: str) -> bool:
    """Whether two names in GPUS differ at most in memory and slot."""
    bare, other_bare = (re.sub(r"(-(pcie|nvl|[0-9]+gb))+$", "", name) for name in (one, other))
    return bare == other_bare


def gpu_on_data_sheet(called: str) -> Gpu | None:
    """The GPU that its data sheet calls so, as sources of counted workloads do; None for any other name."""
    return next((gpu for gpu in GPUS.values() if gpu.called == called), None)


@lru_cache(maxsize=2**10)
def generation_of(gpu: str) -> str:
    """Generation of the GPU called ``gpu``, such as "NVIDIA A100-SXM4-80GB"; "" for one that is not known."""
    name = re.sub(r"[-_/]", " ", gpu.lower())
    found = [
        key for key, pattern in GENERATIONS.items() if re.search(rf"(?<![0-9a-z])(rtx)?({pattern})(?![0-9a-z])", name)
    ]
    return found[-1] if found else ""
