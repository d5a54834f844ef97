"""A replay of a workload as a tree of modules, so that ``fully_shard`` can group them as a plan says.

Computation is simulated by sleeping; parameters have the shapes of the profile, and all that communicates is real. The
input needs no gradient, as tokens and images need none, so that the groups that begin with it are reduced last.

A timetable says when each computation ends, as in other replays. It moves by the time that the host waits for
collectives, and not by the host's other work, such as copies: it is as if the host ran ahead of a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from osfmodel.entities.errors import PlanError
from osfmodel.entities.modules import inside
from osfmodel.entities.plan import Plan
from osfmodel.entities.rounding import plain_sum
from osfmodel.entities.workload import Layer, Workload
from osfmodel.runtime.training.pace import SleepingPace
from osfmodel.runtime.training.replayed_model import Noise, layer_node, layer_parameter


def replay_of_groups(workload: Workload, plan: Plan, pace: SleepingPace) -> Any:
    """A module that replays ``workload``, called with a tensor, with a submodule of its name for each of the plan's.

    Raises PlanError if the layers of a module do not follow each other.
    """
    import torch

    node = layer_node(pace, Noise())

    class ReplayedLayer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, layer: Layer) -> None:
            super().__init__()
            self.layer, self.tensor = layer, layer_parameter(layer, "cpu")

        def forward(self, carried: Any) -> Any:
            return node.apply(carried, self.tensor, self.layer.forward_time, self.layer.backward_time, False)

    class ReplayedModule(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, parts: Sequence[Any]) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, carried: Any) -> Any:
            for part in self.parts:
                carried = part(carried)
            return carried

    rules = plan.sharding
    names = {name for group in (rules.groups if rules else ()) for name in group.modules}
    found: dict[str, Any] = {}

    def tree(layers: Sequence[Layer], around: str) -> Any:
        """The module ``around`` with these layers; those of modules inside it in a module of their own."""
        parts, place = [], 0
        while place < len(layers):
            module = _outermost(layers[place].name, names, around)
            held = [layer for layer in layers[place:] if module and inside(layer.name, module)]
            if module in found or (held and held != list(layers[place : place + len(held)])):
                raise PlanError(f"the layers of module {module!r} do not follow each other in {workload.name!r}")
            if module:
                found[module] = tree(held, module)
            parts.append(found[module] if module else ReplayedLayer(layers[place]))
            place += len(held) or 1
        return ReplayedModule(parts)

    class ReplayedTree(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.root = tree(_with_gradients(workload), "")

        def forward(self, carried: Any) -> Any:
            return self.root(carried)

        def get_submodule(self, target: str) -> Any:
            return found[target]

    return ReplayedTree()


def _outermost(layer: str, names: set[str], around: str) -> str:
    """The outermost of the modules that hold ``layer`` inside ``around``; "" if there is none."""
    holders = [
        name for name in names if inside(layer, name) and name != around and (not around or inside(name, around))
    ]
    return min(holders, key=len, default="")


def _with_gradients(workload: Workload) -> list[Layer]:
    """The layers; of those before the first parameter, which torch leaves out of backward, that takes the time."""
    layers = list(workload.layers)
    first = next((place for place, layer in enumerate(layers) if layer.gradient_bytes), 0)
    before = plain_sum(layer.backward_time for layer in layers[:first])
    layers[first] = replace(layers[first], backward_time=layers[first].backward_time + before)
    return layers


def sharded_replay_step(pace: SleepingPace, finish: Callable[[], None], update_time: float) -> Callable[[Any], Any]:
    """(model) -> loss: one iteration; ``finish`` waits for reduce-scatters before the update of the shards."""
    import torch

    start = torch.zeros(())

    def step(model: Any) -> Any:
        pace.start()
        loss = model(start)
        loss.backward()
        finish()
        for tensor in model.parameters():
            tensor.grad = None
        pace.start()
        pace.compute(update_time)
        return loss.detach()

    return step
