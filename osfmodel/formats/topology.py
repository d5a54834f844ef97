"""``nvidia-smi topo -m``: how the GPUs of a node are joined, at how many CPUs they are, and its NICs.

It names no GPU and no rate: the GPU is asked for, and the network is said in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from osfmodel.cost.nccl_words import from_spec
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.gpus import GPUS, gpu_name
from osfmodel.formats.source_text import Hints, Text

COLOUR = re.compile("\x1b\\[[0-9;]{0,20}m")
GPU = re.compile(r"GPU[0-9]{1,4}")
NIC = re.compile(r"NIC[0-9]{1,4}|mlx[0-9]_[0-9]{1,3}")
LINK = re.compile(r"X|NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS|SOC")
ACROSS = ("SYS", "SOC")
"""Ways between CPUs."""


class NodeLinks(NamedTuple):
    """The links of a node: of each GPU to each, and the number of NICs."""

    links: tuple[tuple[str, ...], ...]
    nics: int

    @property
    def sockets(self) -> int:
        """Number of CPUs with GPUs: GPUs that are not joined across CPUs are at one of them."""
        left, found = set(range(len(self.links))), 0
        while left:
            reached, new = set(), {min(left)}
            while new:
                reached |= new
                new = {b for a in new for b, link in enumerate(self.links[a]) if link not in ACROSS} - reached
            left, found = left - reached, found + 1
        return found

    @property
    def fabric(self) -> str:
        """The fabric: of NVLink between all, between pairs, or none."""
        joined = [sum(link.startswith("NV") for link in row) for row in self.links]
        if all(count == len(self.links) - 1 for count in joined):
            return "nvswitch"
        return "nvlink-mesh" if max(joined) > 1 else "nvlink-pairs" if max(joined) == 1 else "pcie"


def sniff(head: str) -> bool:
    """Whether a header of GPUs is followed by the first GPU, which is itself."""
    lines = [COLOUR.sub("", line).split() for line in head.splitlines()[:50]]
    return any(before[:1] == ["GPU0"] and line[:2] == ["GPU0", "X"] for before, line in pairwise(lines))


def _rows(text: Text) -> Iterator[tuple[int, str, list[str]]]:
    for number, line in text.lines():
        plain = COLOUR.sub("", line)
        words = plain.split()
        if words:
            yield number, plain, words


def links_of(text: Text) -> NodeLinks:
    """The links in the table. Raises DataError for one that is not whole."""
    count, nics = 0, 0
    found: list[tuple[str, ...]] = []
    for number, line, words in _rows(text):
        if not count:
            if words[0] == "GPU0":
                count = sum(GPU.fullmatch(word) is not None for word in words)
                nics = sum(NIC.fullmatch(word) is not None for word in words)
        elif GPU.fullmatch(words[0]):
            row = tuple(words[1 : count + 1])
            if words[0] != f"GPU{len(found)}" or len(row) < count or not all(map(LINK.fullmatch, row)):
                raise text.fault(number, line, f"is not the row of GPU {len(found)} with {how_many(count, 'link')}")
            found.append(row)
    if len(found) != count or count < 2:
        raise DataError(
            f"has {how_many(len(found), 'row')} of {how_many(count, 'GPU')}: give all that nvidia-smi printed"
        )
    return NodeLinks(tuple(found), nics)


def read(text: Text, hints: Hints) -> list[Cluster]:
    """The node as a cluster. Raises DataError where nobody says the GPU, or where it has no such links."""
    found = links_of(text)
    name = gpu_name(hints.gpu or "")
    if not name:
        raise DataError("does not name its GPU: give --gpu, such as --gpu l40s")
    words = [f"{name}x{len(found.links)}", *_said(found, name)]
    try:
        cluster = from_spec(f"nccl:{','.join(words)}", words)
    except UsageError as error:
        raise DataError(str(error)) from None
    nics = f", {how_many(found.nics, 'NIC')}" if found.nics else ""
    text.tell(
        f"in words this node is nccl:{','.join(words)}{nics}: several such nodes need the rate of their network, as in "
        f"nccl:{words[0]},100Gbps/node{''.join(f',{word}' for word in words[1:])}"
    )
    source = replace(text.source("nvidia-smi topo -m; rates by data sheets"), gpu=GPUS[name].called)
    return [replace(cluster, name=hints.name or cluster.name, source=source)]


def _said(found: NodeLinks, gpu: str) -> Iterator[str]:
    """The words for what differs from the usual node of this GPU."""
    usual = GPUS[gpu].fabric
    if found.fabric != usual and not (usual == "host" and found.fabric == "pcie"):
        yield found.fabric
    if found.fabric in ("pcie", "nvlink-pairs"):
        yield f"sockets={min(2, found.sockets)}"
