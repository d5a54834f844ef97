"""A forward, as a counter saw it, as a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import prod

from osfmodel.counting.library.counter import Counter, Visit
from osfmodel.counting.modules import LOGITS, Model, Module, Shape
from osfmodel.entities.modules import blocks_of, inside, module_of


def modules_of(visits: list[Visit], shapes: Mapping[str, Shape]) -> Iterator[Module]:
    """The modules of a forward with the parameters of ``shapes``; further uses of a module have names of their own."""
    places = {parameter: place for place, parameter in enumerate(shapes)}
    uses: dict[str, int] = {}
    for visit in visits:
        own = sorted((one for one in visit.parameters if one in shapes), key=places.__getitem__)
        uses[visit.module] = uses.get(visit.module, 0) + 1
        parameters = tuple((one[len(visit.module) + 1 :], shapes[one]) for one in own)
        name = visit.module if own else f"{visit.module}.use{uses[visit.module]}"
        made = Module(name, parameters, tuple(visit.products), tuple(visit.scores), visit.moved, visit.kept)
        of_keys = visit.products[0].columns if visit.products and name.endswith(("k_proj", "v_proj")) else 0
        yield replace(made, keys=visit.keys, experts=visit.experts, of_keys=of_keys)


def model_of(
    name: str, counter: Counter, shapes: Mapping[str, Shape], tokens: int, logits: int = 0, row_parallel: str = ""
) -> Model:
    """The model of a forward.

    shapes:       of all parameters; those that the forward does not use are without work, behind those before them
    logits:       elements of its output, for which a loss needs more memory
    row_parallel: pattern of the names of modules that tensor parallelism divides by rows
    """
    if logits:
        last = counter.visits[-1]
        last.moved, last.kept = last.moved + 2 * LOGITS * logits, last.kept + LOGITS * logits
    modules = list(modules_of(counter.visits, shapes))
    if row_parallel:
        rows = re.compile(row_parallel)
        modules = [replace(one, row_parallel=True) if rows.fullmatch(one.name) else one for one in modules]
    modules = _with_unused(modules, shapes)
    return Model(name, tuple(modules), tokens, recomputable(modules), counter.causal)


def _with_unused(modules: list[Module], shapes: Mapping[str, Shape]) -> list[Module]:
    """The modules, and the parameters that none of them has."""
    holders = {f"{one.name}.{name}" if name else one.name: one.name for one in modules for name, _ in one.parameters}
    added: dict[str, dict[str, list[tuple[str, Shape]]]] = {}
    before = ""
    for parameter, shape in shapes.items():
        if parameter in holders:
            before = holders[parameter]
            continue
        module = module_of(parameter) if "." in parameter else parameter
        added.setdefault(before, {}).setdefault(module, []).append((parameter[len(module) + 1 :], shape))
    made = []
    for one in [Module("", ()), *modules]:
        unused = added.pop(one.name, {})
        own = tuple(unused.pop(one.name, ()))
        made += [replace(one, parameters=one.parameters + own)] if one.name else []
        made += [Module(name, tuple(parameters)) for name, parameters in unused.items()]
    return made


def recomputable(modules: Collection[Module]) -> tuple[str, ...]:
    """The blocks of two modules or more, one right behind the other."""
    sizes = [
        (f"{one.name}.{name}" if name else one.name, 4 * prod(shape))
        for one in modules
        for name, shape in one.parameters
    ]
    places: dict[str, list[int]] = {name: [] for name in blocks_of(sizes)}
    for place, module in enumerate(modules):
        for name, found in places.items():
            if inside(module.name, name):
                found.append(place)
    return tuple(name for name, found in places.items() if len(found) > 1 and found[-1] - found[0] == len(found) - 1)


PACKAGE = re.compile(r"requires the (\S+) library")
"""How transformers names a package that a class needs."""
PACKAGES = {"timm": "timm torchvision"}
"""Packages that transformers asks for under the name of one."""


def one_line(error: BaseException) -> str:
    """An error of a library, short; of a package that is not installed, the command that installs it."""
    if isinstance(error, ImportError) and (found := PACKAGE.search(f"{error}")):
        return f"its class needs another package: pip install {PACKAGES.get(found[1], found[1])}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
