"""Count the model that a function of the user's returns, on the meta device."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from typing import Any

from osfmodel.counting.library.counted import model_of, one_line
from osfmodel.counting.library.counter import Counter
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import DataError, UsageError

USUAL = 4096
"""Tokens of a sample where nobody says."""
SIDE = 224
"""Sides of an image."""


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
            raise UsageError(f"{name!r}: there is no module {error.name!r} here or on the Python path") from None
        raise DataError(f"{name!r}: importing {module_name} failed: {error}") from error
    except Exception as error:
        raise DataError(f"{name!r}: importing {module_name} failed: {one_line(error)}") from error
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"{name!r}: {module_name} has no function {function!r}")
    return found


def count(name: str, tokens: int) -> Model:
    """The model that ``module:function`` returns, for samples of ``tokens`` tokens.

    Its input is an image for a forward whose first layer is a convolution, tokens for one that is an embedding, and a
    vector for a linear layer. Raises UsageError, and DataError for what is no model or cannot be counted.
    """
    import torch

    make = called(name)
    try:
        with torch.device("meta"):
            model = make()
            if isinstance(model, tuple | list):  # as a factory of osf profile returns it
                model = model[0]
    except Exception as error:
        raise DataError(f"{name!r} failed: {one_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise DataError(f"{name!r} returned {type(model).__name__}, not a torch.nn.Module")
    model = model.to("meta").train()
    counter = Counter(model)
    shapes = {one: tuple(tensor.shape) for one, tensor in model.named_parameters()}
    try:
        with torch.device("meta"), counter.counting():
            given, length = _example(model, tokens)
            output = model(given)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{name!r}: its forward cannot be counted: {one_line(error)}") from error
    language = length and isinstance(output, torch.Tensor) and output.ndim == 3 and output.shape[1] == length
    return model_of(name, counter, shapes, length, output.numel() if language else 0)


def _example(model: Any, tokens: int) -> tuple[Any, int]:
    """An input of one sample, and its number of tokens, by the first layer that has parameters."""
    import torch
    from torch import nn

    required = [
        one.name for one in inspect.signature(model.forward).parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    if len(required) > 1:
        raise DataError(f"its forward takes {', '.join(required)}: give a module that takes one tensor")
    for layer in model.modules():
        if isinstance(layer, nn.Embedding):
            length = tokens or USUAL
            return torch.zeros((1, length), dtype=torch.long), length
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            return torch.randn((1, layer.in_channels, *[SIDE] * len(layer.kernel_size))), 0
        if isinstance(layer, nn.Linear):
            return torch.randn((1, layer.in_features)), 0
    raise DataError("it has no embedding, convolution or linear layer that says what its input is")
