"""Update some parameters and not others with the user's own optimizer, which must treat each by itself.

A tripwire is a call before anything reads or writes a parameter, or an optimizer's state. A parameter under a tripwire
has another class, by which PyTorch announces every function, method and attribute that it is given to, from
``parameter.data`` to an argument inside a list. Those that cost most stay as they are: what is not under one costs
nothing. Other tensors that share its memory announce nothing; :func:`shared` tells of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from osfmodel.entities.errors import UsageError

SEPARATE = ("SGD", "Adam", "AdamW")
"""Optimizers of torch.optim that treat each parameter by itself, tested here. A class may set ``separate = True``."""

GROUPLESS = (
    "{} is in none of the optimizer's groups: give execute() the optimizer that updates it, and close() and call it "
    "again where groups change"
)


def require_separate(optimizer: Any, parameters: Iterable[Any], what: str) -> None:
    """Raise UsageError, naming ``what`` needs it, unless just these parameters are updated, each by itself."""
    import torch

    kind = type(optimizer)
    if kind not in [getattr(torch.optim, name) for name in SEPARATE] and not getattr(kind, "separate", False):
        raise UsageError(f"{what} needs {', '.join(SEPARATE)} of torch.optim, not {kind.__name__}")
    updated = {id(tensor) for group in optimizer.param_groups for tensor in group["params"] if tensor.requires_grad}
    if updated != {id(tensor) for tensor in parameters}:
        raise UsageError(f"{what} needs one optimizer with all trainable parameters of the model, and no others")


def update(optimizer: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Make the step of ``optimizer`` as if it had these groups, without its hooks."""
    import torch

    kept = optimizer.param_groups
    optimizer.param_groups = groups
    try:
        # Not in the inference mode of an evaluation, which the optimizer's state would not survive.
        with torch.inference_mode(False), torch.no_grad():
            type(optimizer).step.__wrapped__(optimizer)
    finally:
        optimizer.param_groups = kept


class Groups:
    """The group of each parameter, as the optimizer has them at the start of a backward."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._known: dict[int, dict[str, Any]] = {}

    def look(self) -> None:
        """Read the groups at the start of a backward: schedulers change them, and loading a state replaces them."""
        self._known = {id(tensor): group for group in self.optimizer.param_groups for tensor in group["params"]}

    def of(self, name: str, parameter: Any) -> dict[str, Any]:
        """The group of a parameter. Raises UsageError if it is in none."""
        group = self._known.get(id(parameter))
        if group is None:
            raise UsageError(GROUPLESS.format(repr(name)))
        return group


def veil_type(said: str) -> Any:
    """The type of a gradient that must not be used: any use from Python is an error."""
    import torch

    class Veil(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise UsageError(said)

    return Veil


def veiled(tensor: Any, kind: Any) -> Any:
    """``tensor`` as one of ``kind``, a type of :func:`veil_type`, in the same memory."""
    return tensor.as_subclass(kind)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's options as they are now: schedulers change them before the update is made."""
    return {key: value.clone() if hasattr(value, "clone") else value for key, value in group.items() if key != "params"}


ATTRIBUTES = (
    "grad", "requires_grad", "shape", "dtype", "device", "layout", "is_leaf", "ndim", "itemsize", "nbytes", "is_cuda",
    "is_cpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "retains_grad", "_backward_hooks",
    "_post_accumulate_grad_hooks",
)  # fmt: skip
METHODS = (
    "size", "dim", "numel", "nelement", "stride", "element_size", "is_floating_point", "is_complex", "is_contiguous",
    "get_device", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "__hash__", "__len__",
)  # fmt: skip
"""Attributes that tell nothing of a parameter's values."""


class Tripwire:
    """Calls ``meet`` with a parameter before its values are read or written, once it is under the tripwire."""

    def __init__(self, meet: Callable[[Any], None]) -> None:
        self._meet = meet
        self._kinds: dict[type, type] = {}
        self._under: dict[int, tuple[Any, Any]] = {}

    def lay(self, parameters: Iterable[Any]) -> None:
        """Put these parameters under the tripwire."""
        for tensor in parameters:
            if id(tensor) not in self._under:
                kind = type(tensor)
                if kind not in self._kinds:
                    self._kinds[kind] = _kind(kind, self._trip)
                tensor.__class__ = self._kinds[kind]
                self._under[id(tensor)] = tensor, kind

    def lift(self, tensor: Any) -> None:
        """Give a parameter its own class back, if it is under the tripwire."""
        _, kind = self._under.pop(id(tensor), (None, None))
        if kind is not None:
            tensor.__class__ = kind

    def clear(self) -> None:
        """Lift the tripwire from all parameters."""
        for tensor, _ in list(self._under.values()):
            self.lift(tensor)

    def _trip(self, given: Any) -> None:
        """Announce the use of parameters in ``given``, at any depth; of all if none is found there."""
        from torch.utils._pytree import tree_leaves

        under = {number: tensor for number, (tensor, _) in self._under.items()}
        met = [one for one in tree_leaves(given) if id(one) in under]
        for tensor in met or list(under.values()):
            if id(tensor) in self._under:  # to meet one may lift others
                self._meet(tensor)
                self.lift(tensor)


def _kind(kind: Any, trip: Callable[[Any], None]) -> Any:
    """The class of parameters of ``kind`` while they are under a tripwire."""
    import torch

    harmless = {getattr(torch.Tensor, name) for name in METHODS}

    class Watched(kind):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            if function in harmless:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*given, **(named or {}))
            trip((given, named))
            return function(*given, **(named or {}))

        def __deepcopy__(self, memo: Any) -> Any:
            trip(self)
            return self.__deepcopy__(memo)  # that of its own class

    for name in ATTRIBUTES:
        if hasattr(kind, name):
            setattr(Watched, name, _quiet(getattr(kind, name)))
    return Watched


def _quiet(attribute: Any) -> property:
    """The attribute, read and written without an announcement."""
    from torch._C import DisableTorchFunctionSubclass as Quiet

    def get(tensor: Any) -> Any:
        with Quiet():
            return attribute.__get__(tensor)

    def put(tensor: Any, value: Any) -> None:
        with Quiet():
            attribute.__set__(tensor, value)

    def delete(tensor: Any) -> None:
        with Quiet():
            attribute.__delete__(tensor)

    return property(get, put, delete)


class StateTripwire:
    """Calls ``meet`` before the state of an optimizer is read or replaced, while it is under the tripwire."""

    def __init__(self, optimizer: Any, meet: Callable[[], None]) -> None:
        self._optimizer, self._kind = optimizer, type(optimizer)

        class Announcing(self._kind):  # type: ignore[misc, name-defined]
            @property
            def state(self) -> Any:
                meet()
                return self.__dict__["state"]

            @state.setter
            def state(self, value: Any) -> None:
                meet()
                self.__dict__["state"] = value

            def __reduce_ex__(self, protocol: Any) -> Any:
                meet()
                return self.__reduce_ex__(protocol)  # that of its own class

        self._announcing = Announcing

    def lay(self) -> None:
        """Put the optimizer under the tripwire."""
        self._optimizer.__class__ = self._announcing

    def lift(self) -> None:
        """Give the optimizer its own class back."""
        self._optimizer.__class__ = self._kind


def shared(tensor: Any) -> bool:
    """Whether another tensor shares its memory: a view, a kept ``.data``, a tensor saved by a graph."""
    import torch

    return bool(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > 2)  # its own, and that of the question
