"""Count a module of PyTorch on the meta device by one forward of a sample: what a counter saw of it, as a model.

The module is one of timm's, by its name or by a ``config.json`` as timm writes it for the hub, or one that a function
of the user's returns; the classes of other libraries have modules of their own.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from math import prod
from typing import Any

from osfmodel.counting.config import Config
from osfmodel.counting.library import inputs
from osfmodel.counting.library.counter import Counter, Visit
from osfmodel.counting.library.inputs import TOKENS, USUAL, Inputs
from osfmodel.counting.library.values import knowing
from osfmodel.counting.modules import LOGITS, Model, Module, Shape
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.lookup import did_you_mean, suggestion
from osfmodel.entities.modules import blocks_of, inside, module_of

MOST = 24
"""Examples of inputs that are tried."""


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
        counter.visits[-1].moved += 2 * LOGITS * logits
    modules = list(modules_of(counter.visits, shapes))
    modules[-1:] = [replace(one, logits=logits) for one in modules[-1:]]
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


@contextmanager
def quiet() -> Iterator[None]:
    """A context without remarks of libraries, which are about weights and speed."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def on_meta() -> Iterator[None]:
    """A context in which modules and inputs are made without data, and small tensors know their values."""
    import torch

    with torch.device("meta"), knowing(guessing=False):
        yield


def make_module(name: str, make: Callable[[], Any]) -> Any:
    """The result of a function on the meta device. Raises DataError where it fails."""
    try:
        with on_meta():
            return make()
    except OsfError:
        raise
    except Exception as error:
        remedy = ": give a function that needs no arguments" if " required " in str(error) else ""
        raise DataError(f"{name} cannot be made: {one_line(error)}{remedy}") from error


def count_module(name: str, module: Any, examples: Iterable[Inputs], tokens: int, given: Inputs | None = None) -> Model:
    """The model of a module by ``given`` inputs, or else by the first of the ``examples`` with which its forward works.

    tokens: of a sample; 0 for the usual number
    Raises UsageError for inputs that the forward does not take, DataError where it cannot be counted.
    """
    module = module.to("meta").train()
    still = _frozen(module)
    length, problem = tokens or min(USUAL, inputs.positions(module) or USUAL), None
    for number, example in enumerate([given] if given else examples):
        if number == MOST:
            break
        try:
            found = _counted(name, module, example, length)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        except Exception as error:
            problem = problem or error
            continue
        return _tuned(found, still) if still else found
    reason = one_line(problem) if problem else "its inputs are not known"
    fewer = f"ask for fewer tokens than {tokens:,}, or " if tokens else ""
    remedy = "" if given else f": {fewer}{inputs.template(module)}"
    if "meta" in reason:
        remedy = ": it depends on values, which are not there: measure it by osf profile on a device"
    raise DataError(f"{name}: its forward cannot be counted: {reason}{remedy}") from problem


def _frozen(module: Any) -> set[str]:
    """Names of modules whose own parameters are all frozen, and of such parameters that no module inside holds."""
    found = {name for name, one in module.named_parameters() if "." not in name and not one.requires_grad}
    for name, one in module.named_modules():
        own = list(one.parameters(recurse=False))
        if own and not any(tensor.requires_grad for tensor in own):
            found.add(name)
    return found


def _tuned(model: Model, still: Collection[str]) -> Model:
    """The model with these modules frozen, and a gradient of each input that has something trained before it.

    What is kept was counted so. Raises UsageError if nothing is trained.
    """
    modules, trained = [], False
    for one in model.modules:
        frozen = re.sub(r"\.use\d+$", "", one.name) in still
        modules.append(replace(one, frozen=frozen, reached=trained))
        trained = trained or (not frozen and bool(one.parameters))
    if not trained:
        raise UsageError(f"{model.name}: nothing is left to train: all of its parameters are frozen")
    return replace(model, modules=tuple(modules))


def _counted(name: str, module: Any, given: Inputs, length: int) -> Model:
    """The model by these inputs, of ``length`` tokens where they say ``seq``."""
    import torch

    counter = Counter(module)
    shapes = {one: tuple(tensor.shape) for one, tensor in module.named_parameters()}
    with on_meta(), counter.counting():
        output = inputs.call(module, given, length)
    tokens = length if inputs.says(given, TOKENS) else 0
    words = [one for one in given.values() if inputs.says(one, TOKENS) and "int" in str(one.get("dtype"))]
    output = output[0] if isinstance(output, tuple) else output
    logits = getattr(output, "logits", output)
    language = words and isinstance(logits, torch.Tensor) and logits.ndim == 3 and logits.shape[1] == length
    model = model_of(name, counter, shapes, tokens, logits.numel() if language else 0)
    return replace(model, sample=inputs.in_words(given, length))


def called(name: str) -> Any:
    """The function called ``module:function``; modules in the working directory are found too. Raises UsageError."""
    module_name, _, function = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            remedy = f": write {module_name[:-3]}:{function}" if module_name.endswith(".py") else ""
            raise UsageError(
                f"{name!r}: there is no module {error.name!r} here or on the Python path{remedy}"
            ) from None
        raise DataError(f"{name!r}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise DataError(f"{name!r}: importing {module_name} failed: {one_line(error)}") from error
    known = [one for one, value in vars(found).items() if callable(value) and not one.startswith("_")]
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        near = suggestion(function, known, "", most=3)
        raise UsageError(f"{name!r}: {module_name} has no function {function!r}{near and ': '}{near}")
    return found


def count_function(config: Config, tokens: int) -> Model:
    """The model that the function of a configuration's name returns; 0 ``tokens`` for the usual number.

    Its inputs are those of a file, or found from its forward: :func:`osfmodel.counting.library.inputs.examples`.
    Raises UsageError, and DataError for what is no model or cannot be counted.
    """
    import torch

    name = config.name
    make = called(name)
    model = make_module(repr(name), make)
    if isinstance(model, tuple | list) and model:  # as a factory of osf profile returns it
        model = model[0]
    if not isinstance(model, torch.nn.Module):
        raise DataError(f"{name!r} returned {type(model).__name__}, not a torch.nn.Module")
    found = config.fields.get(inputs.FIELD)
    return count_module(name, model, inputs.examples(model, tokens), tokens, found)


TIMM_FIELDS = ("num_classes", "global_pool")
"""Fields of a configuration that a model of timm is made with, beside its ``model_args``."""


def count_timm(config: Config, tokens: int) -> Model:
    """The model of a configuration for one image of its own size. Raises UsageError for a name that timm has not."""
    with quiet():
        import timm

        name, given = config.word("architecture"), config.fields
        plain, known = name.partition(".")[0], timm.list_models()
        if plain not in known:
            begun = sorted((one for one in known if plain and one.startswith(plain)), key=len)[:3]
            near = did_you_mean(begun) or suggestion(plain, known, "timm.list_models() has all", most=3)
            raise UsageError(f"timm {timm.__version__} has no model {name!r}: {near}")
        fields = {one: given[one] for one in TIMM_FIELDS if given.get(one) is not None}
        fields |= given.get("model_args") or {}
        module: Any = make_module(config.name, lambda: timm.create_model(name, **fields))
        sizes = config.part("pretrained_cfg").fields if given.get("pretrained_cfg") else {}
        shape = sizes.get("input_size") or module.pretrained_cfg.get("input_size") or (3, 224, 224)
        example = {inputs.wanted(module)[0]: inputs.tensor(inputs.SAMPLES, *shape)}
        return count_module(config.name, module, [example], tokens, config.fields.get(inputs.FIELD))
