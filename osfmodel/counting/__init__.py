"""Workloads without a profile: a model's operations, counted from its dimensions, and a GPU's time for them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from osfmodel.entities.files import profiles
from osfmodel.entities.lookup import model_and_rest
from osfmodel.entities.workload import Workload


def load_workload(name_or_path: str | os.PathLike[str]) -> Workload:
    """A bundled workload by name, one from a JSON file, or one in words.

    In words: ``"llama3-8b:h100,seq8192,batch2,bf16"``, an architecture (``osf list architectures``) or the path of a
    Hugging Face ``config.json``, and a GPU (``osf list gpus``, or a file of ``osf bench --kernels``); then the tokens
    of a sample, the samples of a micro-batch, the type of computation, activation checkpointing (``ac=selective``,
    ``ac=full``, of a part of the blocks ``ac=full:8/32``, by torch's budget ``ac=budget:0.5``), what the host has
    (``offload=optimizer+activations``), ``stack=compile`` or another of ``counting.stacks`` for the software that runs
    it; for fine-tuning ``lora=16`` or ``qlora=16`` (ranks; with ``:all-linear`` behind it beside all linear layers) and
    ``frozen=embeddings+model.layers.0``. Models are also ``timm/NAME``, ``diffusers/CLASS`` and
    ``module:function``, with ``input=FILE`` where their inputs are not found. Times are those of measured kernels, with
    what published runs taught of software, and carry a doubt.

    Raises UsageError for an unknown name or impossible words, DataError for a file that cannot be used.
    """
    if isinstance(name_or_path, str) and in_words(name_or_path):
        from osfmodel.counting.words import counted  # not loaded for a profile

        return counted(name_or_path)
    return profiles.load_workload(name_or_path)


def in_words(text: str) -> bool:
    """Whether a workload is described in words, and no file has that name."""
    model, rest = model_and_rest(text)
    path = rest.startswith(("/", "\\"))
    if path and len(model) > 1 and rest[1:2] not in ("/", "\\"):  # not of a drive or a host: the file of a GPU
        path = not rest.partition(",")[0].endswith(".json")
    return bool(model) and not path and not os.path.exists(text)


def workload_names(begun: str) -> Iterable[str]:
    """Bundled workloads, and architectures with a colon; for what is begun with an architecture, its GPUs."""
    model, colon, _ = begun.partition(":")
    architectures = profiles.names("architecture")
    if not colon:
        return [*profiles.names("workload"), *(f"{name}:" for name in architectures)]
    from osfmodel.entities.gpus import GPUS  # not loaded for a profile

    return [f"{model}:{gpu}" for gpu in GPUS] if model.lower() in architectures else []
