"""Placement of workers on nodes: evenly, on as few nodes as hold them, for every two-level cost model."""

from __future__ import annotations

from typing import NamedTuple


class Placement(NamedTuple):
    """Number of workers, of nodes, and of workers on the fullest and on the emptiest node."""

    workers: int
    nodes: int
    fullest: int
    emptiest: int

    def sharing(self, nics: int) -> float:
        """Number of workers of the fullest node that share one of its ``nics`` NICs."""
        return max(1.0, self.fullest / nics)


def layout_of(workers: int, gpus_per_node: int) -> Placement:
    """``workers`` spread evenly over as few nodes of ``gpus_per_node`` as hold them."""
    nodes = -(-workers // gpus_per_node)
    return Placement(workers, nodes, -(-workers // nodes), workers // nodes)
