"""Dataclasses that are quick to define: only ``__init__`` is compiled, and where it is first asked for.

Up to Python 3.12 the standard library compiles six methods of each class, which takes some milliseconds for ten of
them. Here the others are closures over the names of the fields, and mean the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, FrozenInstanceError, field, fields, is_dataclass, replace
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["MISSING", "dataclass", "field", "fields", "is_dataclass", "replace"]


def _dataclass(cls: Any = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, **more: bool) -> Any:
    """``dataclasses.dataclass``, for classes whose bases are frozen or not as they are themselves."""
    if cls is None:
        return partial(_dataclass, frozen=frozen, slots=slots, eq=eq, **more)
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, **more)(cls)
    of_class: dict[str, Any] = {"__init__": _Compiled(made, frozen), "__repr__": recursive_repr("...")(_shown)}
    names = [one.name for one in fields(made) if one.compare]
    values = attrgetter(*names) if names else type

    def equal(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    if eq:
        of_class |= {"__eq__": equal, "__hash__": (lambda self: hash(values(self))) if frozen else None}
    if frozen:
        of_class |= {"__setattr__": _refused, "__delattr__": _refused}
        of_class |= {"__getstate__": _state, "__setstate__": _restored} if slots else {}
    for name, method in of_class.items():
        if cls.__dict__.get(name) is None:
            setattr(made, name, method)
    return made


class _Missing:
    """The default of a field that a factory makes, as the standard library shows it."""

    def __repr__(self) -> str:
        return "<factory>"


class _Compiled:
    """``__init__`` of a dataclass, which takes its own place when it is first looked up."""

    def __init__(self, made: Any, frozen: bool) -> None:
        self.made, self.frozen = made, frozen

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        known: dict[str, Any] = {"__set": object.__setattr__, "__missing": _Missing()}
        words: dict[bool, list[str]] = {False: ["self"], True: []}
        body = []
        for one in fields(self.made):
            name = value = one.name
            default = "" if one.default is MISSING else f"=__{name}"
            known[f"__{name}"] = one.default
            if one.default_factory is not MISSING:
                default, known[f"__{name}"] = "=__missing", one.default_factory
                value = f"__{name}() if {name} is __missing else {name}" if one.init else f"__{name}()"
            if one.init:
                words[bool(one.kw_only)].append(name + default)
            elif default:
                value = value if value != name else f"__{name}"
            else:
                continue
            body.append(f"__set(self, {name!r}, {value})" if self.frozen else f"self.{name} = {value}")
        body += ["self.__post_init__()"] if hasattr(self.made, "__post_init__") else []
        asked = ", ".join(words[False] + ["*"] * bool(words[True]) + words[True])
        exec(f"def __init__({asked}):\n " + "\n ".join(body or ["pass"]), known)
        made = known["__init__"]
        made.__qualname__, made.__module__ = f"{self.made.__qualname__}.__init__", self.made.__module__
        made.__annotations__ = {one.name: one.type for one in fields(self.made) if one.init} | {"return": None}
        self.made.__init__ = made
        return made if instance is None else made.__get__(instance)


def _shown(self: Any) -> str:
    values = [f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr]
    return f"{type(self).__qualname__}({', '.join(values)})"


def _refused(self: Any, name: str, value: Any = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in fields(self)]


def _restored(self: Any, state: list[Any]) -> None:
    for one, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass
