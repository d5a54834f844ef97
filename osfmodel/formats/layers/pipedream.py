"""PipeDream's graph.txt: a node per layer with times in ms and sizes in bytes, and edges, which are ignored.

    node4 -- Embedding(32320, 1024) -- forward_compute_time=0.073, backward_compute_time=6.949,
    activation_size=6291456.0, parameter_size=132382720.000        (one line)

Input nodes, which hold the loading of data, are left out; layers are in the order of the file.
"""

from __future__ import annotations

import re

from osfmodel.entities.errors import DataError
from osfmodel.entities.workload import Layer, Workload
from osfmodel.formats.source_text import Hints, Text

FIGURES = " -- forward_compute_time="
NODE = re.compile(r"(node\d+) -- (.*)")
TIMES = re.compile(
    r"([^,]+), backward_compute_time=([^,]+), activation_size=(\[[^\]]*\]|[^,]+), "
    r"parameter_size=([^, ]+)(?: -- stage_id=\d+)?"
)
"""The rest of a line after FIGURES. Matched separately, or a long line would take a square of its length."""


def sniff(head: str) -> bool:
    """Whether the first line begins with a node and states a forward_compute_time."""
    first = head.lstrip().partition("\n")[0]
    return first.startswith("node") and "forward_compute_time=" in first


def read(text: Text, hints: Hints) -> list[Workload]:
    """One workload. Raises DataError for a line that is neither a node nor an edge."""
    layers: list[Layer] = []
    for number, line in text.lines():
        if not line.strip() or re.fullmatch(r"\s*node\d+ -- node\d+\s*", line):
            continue
        head, _, tail = line.strip().rpartition(FIGURES)
        node, times = NODE.fullmatch(head), TIMES.fullmatch(tail)
        if node is None or times is None:
            raise text.fault(number, line, "is neither a node nor an edge of PipeDream's graph")
        text.limit(number, 6 * len(layers))
        if not node[2].startswith("Input"):
            layers.append(_layer(text, number, node[1], times))
    if not layers:
        raise DataError("has no nodes with times")
    source = text.source("PipeDream graph, input nodes left out; update as 0")
    return [Workload(hints.name, tuple(layers), hints.batch_size, 0.0, source)]


def _layer(text: Text, number: int, name: str, times: re.Match[str]) -> Layer:
    sizes = [text.whole(number, size) for size in times[3].strip("[]").split(";")]
    forward, backward = text.number(number, times[1]) * 1e-3, text.number(number, times[2]) * 1e-3
    return Layer(name, forward, backward, text.whole(number, times[4]), activation_bytes=sum(sizes))
