"""Count the model that a function of the user's returns, on the meta device."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from osfmodel.counting.config import Config
from osfmodel.counting.library import inputs
from osfmodel.counting.library.counted import count_module, make_module, one_line
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.lookup import suggestion


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


def count(config: Config, tokens: int) -> Model:
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
