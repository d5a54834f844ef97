"""Values of small tensors on the meta device, such as positions and grids, on which a model's shapes depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MOST = 2**20
"""Elements of the largest tensor whose values are known."""


def tensors_in(values: Any, kind: type) -> Iterator[Any]:
    """The tensors among arguments: lists, tuples and dictionaries of them. Torch's own trees take much longer."""
    if isinstance(values, kind):
        yield values
    elif isinstance(values, list | tuple | dict):
        for one in values.values() if isinstance(values, dict) else values:
            yield from tensors_in(one, kind)


@contextmanager
def knowing(guessing: bool = True) -> Iterator[None]:
    """A context in which the values of small tensors on the meta device that depend on no parameter are known.

    They are computed beside, on the CPU, by the same operations: what ``item()`` and ``nonzero()`` ask for. All others
    count as finite and as unequal to others.

    guessing: whether a condition on values that are not known counts as true; it has no value else
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    class Knowing(TorchDispatchMode):  # type: ignore[misc]
        """Computes small tensors beside those of the meta device."""

        def __init__(self) -> None:
            super().__init__()
            self.known: dict[int, tuple[Any, Any]] = {}
            self.stored: dict[int, set[int]] = {}  # by storage: the keys of its tensors in known

        def know(self, one: Any, known: Any) -> None:
            """Keep the values of a tensor, which stays alive so that no other gets its number."""
            self.known[id(one)] = one, known
            self.stored.setdefault(one.untyped_storage()._cdata, set()).add(id(one))

        def __torch_dispatch__(self, operator: Any, types: Any, inputs: Any = (), named: Any = None) -> Any:
            given = (inputs, named or {})
            tensors = list(tensors_in(given, torch.Tensor))
            there = any(one.device.type == "meta" for one in tensors)
            if there and any(one.device.type == "cpu" and one.ndim for one in tensors):
                inputs, named = given = tree_map(self.moved, given)
                tensors = list(tensors_in(given, torch.Tensor))
            ready = all(id(one) in self.known or one.device.type == "cpu" for one in tensors)
            ready = ready and "rand" not in operator.overloadpacket.__name__ and self.small(operator, given)
            try:
                beside = tree_map(self.value, given) if ready else None
                result = operator(*beside[0], **beside[1]) if beside else None
            except (IndexError, RuntimeError):  # as of places behind the end of a table
                ready = False
            if not ready:
                self.forget(operator, tensors)
                if (guessed := self.guessed(operator, tensors, given)) is not None:
                    return guessed
                return operator(*self.indexed(operator, inputs), **given[1])
            try:
                output = operator(*inputs, **given[1])
            except (RuntimeError, NotImplementedError):  # a shape that depends on values
                output = tree_map(lambda one: one.to("meta") if isinstance(one, torch.Tensor) else one, result)
            for one, known in zip(tree_leaves(output), tree_leaves(result), strict=True):
                if isinstance(one, torch.Tensor) and one.device.type == "meta" and known.numel() <= MOST:
                    self.know(one, known)
            return output

        def moved(self, one: Any) -> Any:
            """A tensor of several elements on the CPU, as it is called with one on the meta device, moved there."""
            if not isinstance(one, torch.Tensor) or one.device.type != "cpu" or not one.ndim:
                return one
            there = torch.empty(one.shape, dtype=one.dtype, device="meta")
            self.know(there, one)
            return there

        def value(self, one: Any) -> Any:
            """A stand-in for an argument on the CPU."""
            if isinstance(one, torch.device):
                return torch.device("cpu")
            return self.known[id(one)][1] if id(one) in self.known else one

        def small(self, operator: Any, given: Any) -> bool:
            """Whether an operation makes few elements, as far as its numbers say where it has no tensor."""
            if next(tensors_in(given, torch.Tensor), None) is not None:
                return "empty" not in operator.overloadpacket.__name__
            numbers = [one for one in tree_leaves(given) if isinstance(one, int) and not isinstance(one, bool)]
            product = 1
            for one in numbers:
                product *= max(1, abs(one))
            made = "empty" not in operator.overloadpacket.__name__
            return made and product <= MOST

        def forget(self, operator: Any, tensors: list[Any]) -> None:
            """Values that an operation overwrites with unknown ones are unknown."""
            if operator._schema.is_mutable and tensors and tensors[0].device.type == "meta":
                for key in self.stored.pop(tensors[0].untyped_storage()._cdata, ()):
                    self.known.pop(key, None)

        def guessed(self, operator: Any, tensors: list[Any], given: Any) -> Any:
            """The output of an operation on unknown values, as if no two were equal; None where that does not say it.

            Places in which something is true are all, numbers are unequal, and the largest of several values are dealt
            out evenly, as a router's experts.
            """
            name = operator.overloadpacket.__name__
            if name == "nonzero":
                return self.places(tensors[0])
            if name == "masked_select":
                number = self.places(torch.broadcast_tensors(*tensors)[1] if tensors[0].ndim else tensors[1]).shape[0]
                return tensors[0].new_empty((number,))
            if name == "_local_scalar_dense":
                return True if guessing and tensors[0].dtype == torch.bool else None
            if name not in ("eq", "ne", "topk", "argmax") or len(tensors) != 1 or not tensors[0].ndim:
                return None
            made = operator(*given[0], **given[1])
            places = made[1] if name == "topk" else made
            if places.numel() > MOST:
                return made
            if name in ("eq", "ne"):
                known = torch.full(places.shape, name == "ne")
            elif name == "topk" or places.ndim == tensors[0].ndim - 1:
                known = torch.arange(places.numel()).reshape(places.shape) % tensors[0].shape[-1]
            else:
                return made
            self.know(places, known)
            return made

        def places(self, one: Any) -> Any:
            """The places in which a tensor is not zero; all if its values are not known."""
            if id(one) in self.known:
                return self.known[id(one)][1].nonzero().to("meta")
            made = torch.empty((one.numel(), one.ndim), dtype=torch.long, device="meta")
            if made.numel() <= MOST:
                self.know(made, torch.ones(one.shape, device="cpu").nonzero())
            return made

        def indexed(self, operator: Any, inputs: Any) -> Any:
            """The arguments with places instead of masks whose values are known."""
            if not operator.overloadpacket.__name__.startswith(("index", "_unsafe_index")) or len(inputs) < 2:
                return inputs
            places: list[Any] = []
            for one in inputs[1] if isinstance(inputs[1], list | tuple) else ():
                mask = one is not None and one.dtype == torch.bool
                places += self.places(one).unbind(1) if mask else [one]
            return (inputs[0], places, *inputs[2:]) if places else inputs

    class Making(TorchFunctionMode):  # type: ignore[misc]
        """Makes tensors of given numbers where their values are known, and takes all unknown ones for finite."""

        def __torch_function__(self, function: Any, types: Any, inputs: Any = (), named: Any = None) -> Any:
            named = named or {}
            if function is torch.tensor and str(named.get("device") or "meta") == "meta":
                numbers = tree_map(
                    lambda one: beside.known[id(one)][1].item() if id(one) in beside.known else one, inputs
                )
                return torch.tensor(*numbers, **{**named, "device": "cpu"}).to("meta")
            if function is torch.arange:
                inputs = tuple(beside.known[id(one)][1].item() if id(one) in beside.known else one for one in inputs)
            if function is torch.Tensor.__format__ and id(inputs[0]) in beside.known:
                return format(beside.known[id(inputs[0])][1], *inputs[1:])
            if function is torch.Tensor.tolist and id(inputs[0]) in beside.known:
                return beside.known[id(inputs[0])][1].tolist()
            if function in FINITE:
                return torch.full(inputs[0].shape, FINITE[function], dtype=torch.bool, device="meta")
            if function is torch.Tensor.__getitem__:
                places = inputs[1] if isinstance(inputs[1], tuple) else (inputs[1],)
                made = [self.__torch_function__(torch.tensor, (), (one,)) if isinstance(one, list) else one
                        for one in places]  # fmt: skip
                inputs = (inputs[0], tuple(made) if isinstance(inputs[1], tuple) else made[0])
            return function(*inputs, **named)

    FINITE = {torch.isfinite: True, torch.isinf: False, torch.isnan: False}  # noqa: N806
    beside = Knowing()
    with beside, Making():
        yield
