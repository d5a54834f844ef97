"""Models to profile: from a factory of the user's, or by name from torchvision or transformers with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.counting.library.counted import called
from osfmodel.entities.errors import DataError, OsfError, UsageError
from osfmodel.entities.lookup import suggestion

SEQUENCE = 128
"""Tokens of a sequence for models of transformers, by default: the length of BERT's first phase."""
LABEL_KINDS = ("CausalLM", "MaskedLM", "ImageClassification")


class Training(NamedTuple):
    """A model, a batch of examples, a function from output to loss, and an optimizer if it is not the default.

    batch:  a tensor or a dict is the model's input, and the loss is ``loss(output)``; a pair is inputs and
            targets, and the loss is ``loss(output, targets)``
    """

    model: Any
    batch: Any
    loss: Callable[..., Any]
    optimizer: Any = None


Maker = Callable[[int | None], Training]
"""A function that makes a fresh training for a batch size, or with None for one of its own choice."""


def is_factory(text: str) -> bool:
    """Whether ``text`` is PACKAGE.MODULE:FACTORY, and not a file."""
    return ":" in text and not Path(text).is_file()


def from_factory(text: str) -> Maker:
    """The maker called ``PACKAGE.MODULE:FACTORY``; modules in the working directory are found too.

    FACTORY() returns (model, batch, loss) or (model, batch, loss, optimizer). It is given ``batch_size`` where it takes
    one; else its batch is repeated or cut. Raises UsageError where there is no such module or function.
    """
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise UsageError(f"{text!r} is not a factory: write PACKAGE.MODULE:FACTORY")
    factory = called(text)
    takes_size = "batch_size" in inspect.signature(factory).parameters

    def make(batch_size: int | None) -> Training:
        known = {"batch_size": batch_size} if takes_size and batch_size is not None else {}
        training = checked(_called(factory, known, text), text)
        if batch_size is None or takes_size:
            return training
        return training._replace(batch=resized(training.batch, batch_size))

    return make


def _called(factory: Callable[..., Any], known: Mapping[str, Any], text: str) -> Any:
    try:
        return factory(**known)
    except OsfError:
        raise
    except Exception as error:
        raise DataError(f"{text!r} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error


def checked(made: Any, text: str) -> Training:
    """A factory's result as a Training. Raises DataError saying what is wrong with it."""
    import torch

    wanted = f"{text!r} must return (model, batch, loss) or (model, batch, loss, optimizer)"
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise DataError(f"{wanted}, not {_kind(made)}")
    training = Training(*made)
    if not isinstance(training.model, torch.nn.Module):
        raise DataError(f"{wanted}: the model is {_kind(training.model)}, not a torch.nn.Module")
    if not callable(training.loss):
        raise DataError(f"{wanted}: the loss is {_kind(training.loss)}, not a function")
    pair = isinstance(training.batch, tuple | list) and len(training.batch) == 2
    if not (pair or isinstance(training.batch, torch.Tensor | Mapping)):
        kind = _kind(training.batch)
        raise DataError(f"{wanted}: the batch is {kind}, not a tensor, a dict or a pair of inputs and targets")
    return training


def _kind(value: Any) -> str:
    length = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}{length}"


def mapped(batch: Any, change: Callable[[Any], Any]) -> Any:
    """The same batch with every tensor changed."""
    if hasattr(batch, "shape"):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: mapped(part, change) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(mapped(part, change) for part in batch)
    return batch


def resized(batch: Any, size: int) -> Any:
    """The batch with ``size`` samples: its own, repeated or cut along the first dimension."""
    import torch

    def change(tensor: Any) -> Any:
        if not tensor.ndim or not len(tensor):
            return tensor
        return tensor[torch.arange(size, device=tensor.device) % len(tensor)]

    return mapped(batch, change)


def from_torchvision(name: str) -> Maker:
    """A maker of torchvision's classification model of that name, images of its own size. Raises UsageError."""
    models = _package("torchvision.models", "torchvision")
    known = models.list_models(module=models)
    if name not in known:
        meant = suggestion(name, known, f"it has {', '.join(known[:8])} ...", most=3)
        raise UsageError(f"torchvision has no classification model {name!r}: {meant}; or give a factory")
    weights = list(models.get_model_weights(name))
    side = weights[0].transforms().crop_size[0] if weights else 224

    def make(batch_size: int | None) -> Training:
        import torch

        count = batch_size or 32
        model = models.get_model(name, weights=None)
        batch = (torch.randn(count, 3, side, side), torch.randint(1000, (count,)))
        return Training(model, batch, classification_loss)

    return make


def classification_loss(output: Any, targets: Any) -> Any:
    """Cross entropy; that of auxiliary classifiers (GoogLeNet, Inception) is added with the usual weight of 0.3."""
    from torch.nn.functional import cross_entropy

    if hasattr(output, "shape"):
        return cross_entropy(output, targets)
    first, *others = (part for part in output if part is not None)
    return sum((0.3 * cross_entropy(part, targets) for part in others), cross_entropy(first, targets))


def from_transformers(name: str, sequence: int = SEQUENCE) -> Maker:
    """A maker of a model of transformers: a model type such as bert or gpt2 in its default size, or a configuration.

    A configuration is a folder with config.json, or a name on the hub, which is looked up there. Language models get
    random tokens as their own labels, image models random images. Raises UsageError where there is none.
    """
    transformers = _package("transformers", "transformers")
    try:
        known = name in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
        settings = transformers.AutoConfig
        config = settings.for_model(name) if known else settings.from_pretrained(name)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"transformers finds no model type, folder or configuration {name!r}: {reason}") from None
    auto = next((kind for kind in LABEL_KINDS if _supports(transformers, kind, config)), None)
    if auto is None:
        raise UsageError(f"{name!r} is neither a language nor an image classification model: write a factory for it")

    def make(batch_size: int | None) -> Training:
        auto_model = getattr(transformers, f"AutoModelFor{auto}")
        model = _called(auto_model.from_config, {"config": config}, name)
        return Training(model, _examples(config, auto, batch_size or 8, sequence), lambda output: output.loss)

    return make


def _supports(transformers: Any, kind: str, config: Any) -> bool:
    """Whether a config has such a head. BERT and its like have both kinds of language head; they are not decoders."""
    mapping = getattr(transformers, f"AutoModelFor{kind}")._model_mapping
    if kind == "CausalLM" and type(config) in transformers.AutoModelForMaskedLM._model_mapping:
        return bool(getattr(config, "is_decoder", False))
    return type(config) in mapping


def _examples(config: Any, kind: str, count: int, sequence: int) -> dict[str, Any]:
    import torch

    if kind == "ImageClassification":
        side = getattr(config, "image_size", None) or 224
        shape = (count, getattr(config, "num_channels", 3), side, side)
        return {"pixel_values": torch.randn(shape), "labels": torch.zeros(count, dtype=torch.long)}
    length = min(sequence, getattr(config, "max_position_embeddings", None) or sequence)
    tokens = torch.randint(config.vocab_size, (count, length))
    return {"input_ids": tokens, "labels": tokens}


def _package(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == package:
            raise UsageError(f"{package} is not installed: pip install {package}, or give a factory") from None
        raise DataError(f"{package} cannot be imported: {' '.join(str(error).split())[:200]}") from None
    except Exception as error:
        raise DataError(f"{package} cannot be imported: {' '.join(str(error).split())[:200]}") from None


def output_of(model: Any, inputs: Any) -> Any:
    """The model's output: a mapping gives arguments by name, a tuple or a list several, anything else one."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)
