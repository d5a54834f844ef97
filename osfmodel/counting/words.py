"""Workloads in words: ``llama3-8b:h100,seq8192,batch2,bf16``, a model and a GPU, and how it is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from osfmodel.counting.architectures import configuration, family_of, usual_tokens
from osfmodel.counting.modules import Model
from osfmodel.counting.roofline import CHECKPOINTING, TrainingSetup, workload_of
from osfmodel.entities.display import brief
from osfmodel.entities.errors import OsfError, UsageError
from osfmodel.entities.gpus import gpu_called, gpu_name
from osfmodel.entities.lookup import did_you_mean, nearest, suggestion
from osfmodel.entities.workload import Workload

TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "tf32", "fp8": "float8"}
FORM = "write MODEL:GPU[,seqN][,batchN][,bf16|fp16|fp32|tf32|fp8][,ac=none|selective|full][,compile]"
MOST_TOKENS = 10**8


@dataclass(frozen=True, slots=True)
class Words:
    """A workload in words, as parts.

    model:    name of an architecture, or path of a configuration
    setting:  GPU, type of element, batch, checkpointing and compilation
    sequence: tokens of a sample; None for the model's usual
    """

    model: str
    setting: TrainingSetup
    sequence: int | None
    text: str
    __repr__ = brief


@lru_cache(maxsize=16)
def counted(text: str) -> Workload:
    """The workload that these words describe. Raises as :func:`osfmodel.counting.load_workload`."""
    words = parse_words(text)
    return workload_of(model_of(words), words.setting, text)


def parse_words(text: str) -> Words:
    """The parts of a workload in words. Raises UsageError."""
    model, _, rest = text.rpartition(":")
    gpu, *parts = (part.strip() for part in rest.split(","))
    try:
        rates = gpu_called(gpu).rates
        words = Words(model, TrainingSetup(gpu_name(gpu), _usual_type(rates)), None, text)
        said: set[str] = set()
        for part in parts:
            words = _with(words, part, said)
    except UsageError as error:
        raise UsageError(f"workload {text!r}: {error}") from None
    return words


def on_gpu(text: str, gpu: str) -> str:
    """The same words for another GPU."""
    model, _, rest = text.rpartition(":")
    return ",".join((f"{model}:{gpu}", *rest.split(",")[1:]))


def _usual_type(rates: Mapping[str, float]) -> str:
    """bfloat16 where a GPU has a rate for it, else float16, else float32."""
    return next(dtype for dtype in ("bfloat16", "float16", "float32") if dtype in rates)


def _with(words: Words, part: str, said: set[str]) -> Words:
    """The words with one more part."""
    match = re.fullmatch(r"(seq|batch)=?(-?[0-9]{1,12})(k?)", part)
    part = next((short for short, dtype in TYPES.items() if dtype == part), part)
    kind = match[1] if match else "ac" if part.startswith("ac=") else "type" if part in TYPES else part
    if kind in said:
        raise UsageError(f"{part!r} says a second time what was said before: leave it out")
    said.add(kind)
    setting = words.setting
    if match:
        number = int(match[2]) * (1024 if match[3] else 1)
        if not 1 <= number <= MOST_TOKENS:
            raise UsageError(f"{part!r}: the number must be from 1 to {MOST_TOKENS}")
        found = replace(words, sequence=number) if kind == "seq" else None
        return found or replace(words, setting=replace(setting, batch=number))
    if part in TYPES:
        return replace(words, setting=replace(setting, dtype=TYPES[part]))
    if part == "compile":
        return replace(words, setting=replace(setting, compiled=True))
    if kind == "ac":
        how = part.removeprefix("ac=")
        if how not in CHECKPOINTING:
            raise UsageError(f"{part!r}: {suggestion(how, CHECKPOINTING)}")
        return replace(words, setting=replace(setting, checkpointing=how))
    digits = "".join(filter(str.isdigit, part))
    near = nearest(part, [*TYPES, "compile", *(f"{name}{digits}" for name in ("seq", "batch") if digits)], 1, 0.4)
    raise UsageError(f"{part!r} is not known here: {did_you_mean(near) or 'leave it out, or'} {FORM}")


def model_of(words: Words) -> Model:
    """The model that the words name. Raises UsageError or DataError."""
    config = configuration(words.model)
    family = family_of(config)
    if words.sequence and not family.longest(config):
        raise UsageError(f"workload {words.text!r}: {words.model} has no sequence: leave seq{words.sequence} out")
    return family.build(config, words.sequence or usual_tokens(family, config))


@lru_cache(maxsize=16)
def beyond_positions(text: str) -> str:
    """A remark on samples that are longer than the configuration's positions; "" for others, and for other names."""
    try:
        words = parse_words(text)
        config = configuration(words.model)
        longest = family_of(config).longest(config)
    except OsfError:
        return ""
    if not longest or (words.sequence or 0) <= longest:
        return ""
    reach = f"{words.model} has positions for {longest:,} tokens (max_position_embeddings)"
    return f"{reach}: samples of {words.sequence:,} are counted as if they reached that far"
