"""Which parts of a model can be computed again in backward: its blocks, found by how modules are nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osfmodel.entities.workload import Layer, Segment

PAIR = 2
"""Modules with tensors of their own, such as a convolution and its norm, that make no block where there are others."""


def blocks(model: Any) -> dict[str, Any]:
    """The outermost modules, by name, that hold no list of blocks and have two or more modules with tensors in them.

    The layers of a transformer, the bottlenecks of a ResNet. What is a list of blocks, or has one in it, is no block
    itself, but its blocks are.
    """
    return dict(_blocks(model, ""))


def _blocks(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        if _lists(child):
            yield from _blocks(child, f"{prefix}{name}.")
        elif _owners(child) >= PAIR:
            yield f"{prefix}{name}", child


def _owners(module: Any) -> int:
    """Modules in it, or itself, with tensors of their own."""
    return sum(any(True for _ in inner.parameters(recurse=False)) for inner in module.modules())


def _lists(module: Any) -> bool:
    """Whether there are two blocks in a row somewhere in it."""
    from torch.nn import ModuleDict, ModuleList, Sequential

    rows = [inner for inner in module.modules() if isinstance(inner, ModuleDict | ModuleList | Sequential)]
    return any(sum(_owners(child) > PAIR for child in row.children()) > 1 for row in rows)


def segments_of(layers: Sequence[Layer], kept: Mapping[str, int]) -> tuple[Segment, ...]:
    """The blocks whose layers stand together, in the order of the layers. ``kept`` are bytes by block."""
    found = []
    for block, size in kept.items():
        places = [place for place, layer in enumerate(layers) if layer.name.startswith(f"{block}.")]
        if places and places[-1] - places[0] == len(places) - 1:
            found.append((places[0], Segment(block, layers[places[0]].name, layers[places[-1]].name, size)))
    return tuple(segment for _, segment in sorted(found, key=lambda pair: pair[0]))
