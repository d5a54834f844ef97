"""PipeDream's graph.txt: a node per layer with times in ms and sizes in bytes, and edges, which are passed over.

    node4 -- Embedding(32320, 1024) -- forward_compute_time=0.073, backward_compute_time=6.949,
    activation_size=6291456.0, parameter_size=132382720.000        (one line)

Input nodes, which hold the loading of data, are left out; layers stand in the order of the file.
"""

from __future__ import annotations

import re

from osfmodel.errors import DataError
from osfmodel.formats.source_text import Hints, Text
from osfmodel.source import Source
from osfmodel.workload import Layer, Workload

NODE = re.compile(
    r"^(node\d+) -- (.*) -- forward_compute_time=([^,]+), backward_compute_time=([^,]+), "
    r"activation_size=(\[[^\]]*\]|[^,]+), parameter_size=([^,]+?)(?: -- stage_id=\d+)?$"
)


def sniff(head: str) -> bool:
    """A first line that begins with a node and states a forward_compute_time."""
    first = head.lstrip().partition("\n")[0]
    return first.startswith("node") and "forward_compute_time=" in first


def read(text: Text, hints: Hints) -> list[Workload]:
    """One workload. Raises DataError for a line that is neither a node nor an edge."""
    layers = []
    for number, line in text.lines():
        if not line.strip() or re.fullmatch(r"\s*node\d+ -- node\d+\s*", line):
            continue
        match = NODE.match(line.strip())
        if match is None:
            raise text.fault(number, line, "is neither a node nor an edge of PipeDream's graph")
        if not match[2].startswith("Input"):
            sizes = [text.whole(number, size) for size in match[5].strip("[]").split(";")]
            layers.append(
                Layer(
                    match[1],
                    text.number(number, match[3]) * 1e-3,
                    text.number(number, match[4]) * 1e-3,
                    text.whole(number, match[6]),
                    activation_bytes=sum(sizes),
                )
            )
    if not layers:
        raise DataError("has no nodes with times")
    source = Source(f"imported from {text.file}", "PipeDream graph, input nodes left out; update as 0", "not stated")
    return [Workload(hints.name, tuple(layers), hints.batch_size, 0.0, source)]
