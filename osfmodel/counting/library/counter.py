"""Count the operations of a forward by module, from the shapes of the tensors that PyTorch is called with.

An operation with a parameter belongs to the module that holds the parameter; one without to the module whose parameter
was used last, since its backward comes right before that module's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from osfmodel.counting.library.values import tensors_in
from osfmodel.counting.modules import Product, attention
from osfmodel.entities.errors import DataError
from osfmodel.entities.modules import module_of


@dataclass(slots=True)
class Visit:
    """The operations from the use of a module's parameters to that of another's.

    module:     "" before the first
    parameters: names of those that are used here for the first time
    """

    module: str
    parameters: list[str] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    scores: list[Product] = field(default_factory=list)
    moved: int = 0
    kept: int = 0
    keys: int = 0
    experts: int = 0


class Counter:
    """Counts the operations of a forward by module.

    visits: in forward order
    causal: whether all attention was causal, of which half is not computed
    attended: whether there was attention as one kernel
    plain_scores: whether there were other products without parameters, as of attention in several
    """

    def __init__(self, model: Any) -> None:
        self.visits: list[Visit] = []
        self.causal = self.attended = self.plain_scores = False
        self._pauses = 0
        self._waiting = Visit("")
        self._names: dict[int, tuple[str, ...]] = {
            _storage(tensor): (name,) for name, tensor in model.named_parameters()
        }
        self._used: set[str] = set()
        self._kept = {*self._names, *map(_storage, model.buffers())}
        self._alive: list[Any] = []  # tensors whose storages are known, so that no other gets their numbers

    @contextmanager
    def counting(self) -> Iterator[None]:
        """A context whose operations are counted. Raises DataError if no parameter is used in it."""
        import torch

        def pack(tensor: Any) -> Any:
            if not self._pauses:
                self._keep(tensor)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        functions = torch.nn.functional
        fused: dict[str, Callable[..., None]] = {
            "scaled_dot_product_attention": self._scaled, "dropout": self._drop,
        }  # fmt: skip
        plain = {name: getattr(functions, name) for name in fused}
        plain["batch_norm"] = functions.batch_norm
        functions.batch_norm = partial(_batch_norm, functions.batch_norm)
        for name, note in fused.items():
            setattr(functions, name, self.fused(plain[name], note))
        try:
            with _noting(self), hooks:
                yield
        finally:
            for name, function in plain.items():
                setattr(functions, name, function)
        if not self.visits:
            raise DataError("the forward uses no parameter: there is nothing to communicate")

    @property
    def _now(self) -> Visit:
        return self.visits[-1] if self.visits else self._waiting

    def note(self, operator: Any, inputs: Iterable[Any], outputs: Iterable[Any], arguments: tuple[Any, ...]) -> None:
        """Count one operation of PyTorch, with its tensors; ``arguments`` are all that it was called with."""
        if self._pauses:
            return
        read, made = list(inputs), list(outputs)
        stores = {_storage(tensor) for tensor in read}
        view = bool(made) and not operator._schema.is_mutable and all(_storage(tensor) in stores for tensor in made)
        name = operator.overloadpacket.__name__
        if view or name.startswith(("empty", "new_empty")):
            return
        held = [self._names.get(_storage(tensor), ()) for tensor in read]
        names = [name for some in held for name in some]
        if read and all(held):  # computed from parameters alone, such as a copy in another type
            self._alive += made
            self._names.update((_storage(tensor), tuple(names)) for tensor in made)
            self._kept.update(map(_storage, made))
        if names:
            self._visit(names)
        if name in PRODUCTS:
            product = PRODUCTS[name](arguments, made[0], lambda tensor: _storage(tensor) in self._names)
            (self._now.products if names else self._now.scores).append(product)
            self.plain_scores = self.plain_scores or (name == "bmm" and not names)
            return
        written = sum(tensor.numel() for tensor in made)
        times = 2 if name in TWICE else 1
        for tensor, some in zip(read, held, strict=True):
            self._now.moved += min(tensor.numel(), written) if some else times * tensor.numel()
        self._now.moved += written

    def _visit(self, names: list[str]) -> None:
        for name in names:
            module = module_of(name) if "." in name else name
            if not self.visits or self.visits[-1].module != module:
                self.visits.append(Visit(module))
            if name not in self._used:
                self._used.add(name)
                self.visits[-1].parameters.append(name)
        first = self.visits[0]
        first.moved, first.kept = first.moved + self._waiting.moved, first.kept + self._waiting.kept
        first.scores, first.keys = first.scores + self._waiting.scores, first.keys + self._waiting.keys
        self._waiting = Visit("")

    def _keep(self, tensor: Any) -> None:
        """Count the storage of a tensor that stays until backward, once."""
        if _storage(tensor) not in self._kept:
            self._kept.add(_storage(tensor))
            self._alive.append(tensor)
            self._now.kept += tensor.untyped_storage().nbytes() // tensor.element_size()

    def fused(self, plain: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        """A function that is one kernel on a GPU and several operations on the meta device.

        ``note(output, *arguments)`` counts it instead of these.
        """

        def fused(*arguments: Any, **named: Any) -> Any:
            with self.paused():
                output = plain(*arguments, **named)
            if not self._pauses:
                note(output, *arguments, **named)
            return output

        return fused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose operations are not counted."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def use(self, module: Any) -> None:
        """Note that a module's own parameters are used now."""
        self._visit([name for tensor in module.parameters(recurse=False) for name in self._names[_storage(tensor)]])

    def add(self, moved: Iterable[Any], kept: Iterable[Any] = (), scores: Iterable[Product] = ()) -> None:
        """Count tensors that a kernel moves and keeps, and its products without parameters."""
        self._now.scores += scores
        self._now.moved += sum(tensor.numel() for tensor in moved)
        for tensor in kept:
            self._keep(tensor)

    def add_experts(self, experts: int, products: Iterable[Product], moved: int, kept: int) -> None:
        """Count experts whose parameters are used now, by the elements that they move and keep."""
        now = self._now
        now.experts, now.products = experts, [*now.products, *products]
        now.moved, now.kept = now.moved + moved, now.kept + kept

    def attend(self, output: Any, tensors: tuple[Any, Any, Any], causal: bool, window: int = 0, chunk: int = 0) -> None:
        """Count attention without stored scores.

        tensors: queries, keys and values, of heads x tokens x width
        window:  the most keys that a query sees, if causal; that it sees to each side, else; 0 for all
        chunk:   tokens beyond which it begins anew; 0 for none
        """
        query, key, value = tensors
        tokens, keys, heads = query.shape[-2], key.shape[-2], prod(query.shape[:-2])
        if 0 < chunk < keys:
            keys = (chunk + 1) // 2 if causal else chunk
            first, second = attention(tokens, heads, query.shape[-1], keys)
        else:
            if window and not causal:
                keys = min(keys, 2 * window + 1)
            windowed = causal and keys == tokens
            first, second = attention(tokens, heads, query.shape[-1], keys, causal, window if windowed else 0)
        seen = [product for visit in (self._waiting, *self.visits) for product in visit.scores]
        self.causal = causal and (self.causal or not seen)
        self.attended = True
        self._now.keys += key.numel() + value.numel()
        self.add((*tensors, output), (*tensors, output), (first, second._replace(columns=value.shape[-1])))

    def _scaled(
        self, output: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        self.attend(output, (query, key, value), is_causal)

    def _drop(self, output: Any, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> None:
        """Dropout, which keeps a mask of single bytes that is not counted."""
        if p and training:
            self._now.moved += input.numel() + output.numel()


def _batch_norm(plain: Callable[..., Any], input: Any, *tensors: Any, **named: Any) -> Any:
    """The output of a normalisation over a batch, also of one value for each channel, as of a single sample."""
    if input.numel() > input.shape[1]:
        return plain(input, *tensors, **named)
    return plain(input, *tensors[:4], **{**named, "training": False})


def _storage(tensor: Any) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _noting(counter: Counter) -> Any:
    """A context in which PyTorch tells the counter of each operation."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):  # type: ignore[misc]
        """Tells of operations as PyTorch dispatches them."""

        def __torch_dispatch__(self, operator: Any, types: Any, inputs: Any = (), named: Any = None) -> Any:
            output = operator(*inputs, **(named or {}))
            read, made = (tensors_in(one, torch.Tensor) for one in ((inputs, named), output))
            counter.note(operator, read, made, inputs)
            return output

    return Noting()


def _matrices(first: Any, second: Any, held: Callable[[Any], bool]) -> Product:
    """A product of matrices, or of as many pairs as the first dimension says; a parameter is the second."""
    times = first.shape[0] if first.ndim == 3 else 1
    rows, inner, columns = first.shape[-2], first.shape[-1], second.shape[-1]
    if held(first) and not held(second):
        rows, columns = columns, rows
    return Product(rows, inner, columns, times)


def _convolution(arguments: tuple[Any, ...], output: Any, held: Callable[[Any], bool]) -> Product:
    inputs, weight, _, stride, _, _, transposed, _, groups = arguments
    kernel = weight.shape[2:]
    if transposed:
        rows = inputs.numel() // inputs.shape[1]
        return Product(rows, inputs.shape[1] // groups, prod(weight.shape[1:]), groups)
    taps = max(1, prod(side // step for side, step in zip(kernel, stride, strict=True)))
    return Product(output.numel() // output.shape[1], prod(weight.shape[1:]), weight.shape[0] // groups, groups, taps)


PRODUCTS: Mapping[str, Callable[[tuple[Any, ...], Any, Callable[[Any], bool]], Product]] = {
    "mm": lambda arguments, _, held: _matrices(arguments[0], arguments[1], held),
    "bmm": lambda arguments, _, held: _matrices(arguments[0], arguments[1], held),
    "addmm": lambda arguments, _, held: _matrices(arguments[1], arguments[2], held),
    "baddbmm": lambda arguments, _, held: _matrices(arguments[1], arguments[2], held),
    "convolution": _convolution,
}
"""Operations of PyTorch that are matrix products, as its FLOP counter has them."""
TWICE = ("native_batch_norm",)
"""Operations that read their inputs twice: for statistics over the batch first."""
