"""The modules of a model as ZeRO-3 sees them: those that are called, and the parameters of each."""

from __future__ import annotations

from osfmodel.entities.dtypes import element_bytes
from osfmodel.entities.modules import as_defined, module_of
from osfmodel.entities.records import dataclass
from osfmodel.entities.sharding import Fetching
from osfmodel.entities.workload import Layer, Workload


@dataclass(slots=True)
class UsedModule:
    """A module that is called, its own parameters, and the places of the first and the last layer in it."""

    layers: list[Layer]
    first: int
    last: int


def elements_of(layer: Layer) -> int:
    """Elements of a parameter."""
    return layer.elements if layer.shape else -(-layer.gradient_bytes // element_bytes(layer.dtype))


def used_modules(workload: Workload) -> list[UsedModule]:
    """The modules that forward calls, in the order in which it gets to them, outer ones first.

    A module whose parts are numbered is taken to be a list, which is not called. Parameters are in the order
    in which modules define them.
    """
    found: dict[str, UsedModule] = {}
    for place, layer in enumerate(workload.layers):
        own = module_of(layer.name)
        for name in _called(own):
            module = found.setdefault(name, UsedModule([], place, place))
            module.last = place
            if name == own and layer.gradient_bytes:
                module.layers.append(layer)
    for module in found.values():
        held = {layer.name: layer for layer in module.layers}
        module.layers = [held[name] for name in as_defined(list(held))]
    return sorted(found.values(), key=lambda module: (module.first, -module.last))


def _called(name: str) -> list[str]:
    """The modules around ``name`` that are called, from the model itself, "", to ``name``."""
    parts = name.split(".")
    around = (".".join(parts[:count]) for count, part in enumerate(parts) if not part.isdigit())
    return [*around, name]


def persistent(workload: Workload, rules: Fetching) -> list[Layer]:
    """The parameters that stay whole on every rank."""
    found, total = [], 0
    for layer in (one for module in used_modules(workload) for one in module.layers):
        size = elements_of(layer)
        if size + total <= rules.most_persistent and size <= rules.persistent:
            found.append(layer)
            total += size
    return found
