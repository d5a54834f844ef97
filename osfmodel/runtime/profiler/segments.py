"""Find the parts of a model that can be recomputed in backward: its blocks, by how modules are nested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from osfmodel.entities.segments import Segment
from osfmodel.entities.workload import Layer

PAIR = 2
"""Modules with tensors, such as a convolution and its norm, that form no block if the model has larger ones."""


def blocks(model: Any) -> dict[str, Any]:
    """The outermost modules, by name, that contain two or more modules with tensors but no list of blocks.

    Examples are the layers of a transformer and the bottlenecks of a ResNet. A list of blocks, or a module with one, is
    not a block itself, but its blocks are.
    """
    return dict(_blocks(model, ""))


def _blocks(module: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, child in module.named_children():
        if _lists(child):
            yield from _blocks(child, f"{prefix}{name}.")
        elif _owners(child) >= PAIR:
            yield f"{prefix}{name}", child


def _owners(module: Any) -> int:
    """Number of modules in it, with itself, that own tensors."""
    return sum(any(True for _ in inner.parameters(recurse=False)) for inner in module.modules())


def _lists(module: Any) -> bool:
    """Whether it contains two blocks in a row."""
    from torch.nn import ModuleDict, ModuleList, Sequential

    rows = [inner for inner in module.modules() if isinstance(inner, ModuleDict | ModuleList | Sequential)]
    return any(sum(_owners(child) > PAIR for child in row.children()) > 1 for row in rows)


def segments_of(layers: Sequence[Layer], kept: Mapping[str, int]) -> tuple[Segment, ...]:
    """The blocks whose layers are consecutive, in the order of the layers. ``kept``: bytes by block."""
    found = []
    for block, size in kept.items():
        places = [place for place, layer in enumerate(layers) if layer.name.startswith(f"{block}.")]
        if places and places[-1] - places[0] == len(places) - 1:
            found.append((places[0], Segment(block, layers[places[0]].name, layers[places[-1]].name, size)))
    return tuple(segment for _, segment in sorted(found, key=lambda pair: pair[0]))
