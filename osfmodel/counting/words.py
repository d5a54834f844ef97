"""Workloads in words: ``llama3-8b:h100,seq8192,batch2,bf16``, a model and a GPU, and how it is trained.

A model is an architecture: a configuration, bundled by name, from a file or from Hugging Face's cache, and the family
that counts it; or a function that returns a module of PyTorch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from osfmodel.counting import library
from osfmodel.counting.config import Config, OptionError
from osfmodel.counting.families import MODEL_FAMILIES, ModelFamily
from osfmodel.counting.finetuning import MOST_RANK, FineTuning, fine_tuned
from osfmodel.counting.kernels import gpu_of, in_file
from osfmodel.counting.modules import Model
from osfmodel.counting.recipes import RECIPES
from osfmodel.counting.roofline import workload_of
from osfmodel.counting.stacks import EAGER, STACKS, USUAL_STACKS
from osfmodel.counting.training import CHECKPOINTING, TENSOR_OVERLAP, TrainingSetup, checkpointing_of, offload_of
from osfmodel.entities.display import brief
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.gpus import gpu_name
from osfmodel.entities.lookup import did_you_mean, letters, model_and_rest, nearest, suggestion
from osfmodel.entities.savings import OFFLOADED
from osfmodel.entities.workload import Workload


class Architecture(NamedTuple):
    """A bundled architecture.

    kind:       its ``model_type``
    parameters: as published
    active:     those that a token passes, as published
    sequence:   tokens of a sample where nobody says; 0 for images
    longest:    the most tokens of a sample; 0 for images
    source:     of its dimensions
    """

    kind: str
    parameters: int
    active: int
    sequence: int
    longest: int
    source: str


def architecture_of(path: Path) -> Architecture:
    """The architecture in a file. Raises DataError for a file that is none."""
    document = profiles.read(path, _decoded)
    config = configuration(str(path))
    family, said = family_of(config), Config(path.stem, document)
    parameters = said.count("parameters", most=10**15)
    active = said.count("active", default=parameters, most=parameters)
    sequence, longest = usual_tokens(family, config), family.longest(config)
    source = str(document.get("source", ""))
    return Architecture(config.word("model_type"), parameters, active, sequence, longest, source)


def usual_tokens(family: ModelFamily, config: Config) -> int:
    """Tokens of a sample where nobody says; 0 for images."""
    return min(family.usual, family.longest(config))


def family_of(config: Config) -> ModelFamily:
    """The family of a configuration: an own one, or else what libraries' classes count. Raises DataError."""
    kind = config.word("model_type")
    if not kind:
        raise DataError(f"{config.name}: the configuration has no 'model_type', which says how to count it")
    return MODEL_FAMILIES.get(kind) or ModelFamily(library.build, library.longest, usual=0)


def architecture_name(model: str) -> str:
    """The bundled architecture of that name in any case and hyphens, also as on a hub (``meta-llama/Llama-3.1-8B``).

    ``model`` in lower case where there is none.
    """
    owner, _, last = model.rpartition("/")
    short = model if "/" in owner or os.path.exists(model) else last.lower().removesuffix("-hf")
    if profiles.files_called(short, "architecture"):  # opt-1.3b and opt-13b have the same letters
        return short
    return {letters(one): one for one in profiles.names("architecture")}.get(letters(short), model.lower())


def configuration(model: str) -> Config:
    """The configuration of an architecture by name (:func:`architecture_name`), of a file, of a model on Hugging Face's
    hub in the local cache, or for ``timm/NAME``, ``diffusers/CLASS`` and ``module:function``.

    Other values of its fields follow a plus: ``llama3-8b+num_hidden_layers=16``; so they may a ``model_type``.

    Raises UsageError or DataError.
    """
    name = architecture_name(model)
    bundled = profiles.files_called(name, "architecture")
    first, *changes = model.split("+")
    if changes and all("=" in change for change in changes):
        return _with_fields(model, first, changes)
    named = library.maker_config(model)  # timm/resnet50 is not torchvision's
    path = Path(model) if named or not bundled else bundled[0]
    if named or not bundled:
        name = path.absolute().parent.name if path.stem == "config" else path.stem
        if path.is_dir():
            name, path = path.absolute().name, library.in_folder(path)
            if not path.exists():
                raise DataError(f"{model} has no config.json, nor a transformer/ or unet/ with one: give its folder")
        if not path.exists():
            if function := library.function_config(model):
                return function
            cached = library.hub_file(model)
            if named and not cached:
                return named
            path, name = cached or path, model.rpartition("/")[2]
        if path.suffix != ".json" and not path.exists():
            raise UsageError(_not_found(model, model.lower(), profiles.names("architecture")))
    document = profiles.read(path, _decoded)
    inside = document.get("config") if document.get("kind") == "architecture" else document
    if not isinstance(inside, Mapping):
        raise DataError(f"{path}: has no 'config' with the fields of a model")
    return Config(name, library.with_type(inside))


def _with_fields(model: str, first: str, changes: Iterable[str]) -> Config:
    """The configuration of an architecture, or the defaults of a ``model_type``, with other values of some fields."""
    known = profiles.files_called(architecture_name(first), "architecture") or first not in MODEL_FAMILIES
    fields = dict(configuration(first).fields) if known else {"model_type": first}
    for key, _, value in (change.partition("=") for change in changes):
        try:
            fields[key] = json.loads(value)
        except ValueError:
            fields[key] = value
    return Config(model, fields)


def _not_found(model: str, name: str, bundled: Iterable[str]) -> str:
    """An error about a model that is neither bundled, nor a file, nor in Hugging Face's cache."""
    owner, slash, last = model.partition("/")
    others = "'osf list architectures' shows those there are; others are timm/NAME, diffusers/CLASS, module:function"
    near = suggestion(name, bundled, others, most=3)
    said = f"no architecture named {model!r}, and no configuration in a file of that name"
    if slash and owner not in ("", ".", "..") and "/" not in last:
        fetch = f"huggingface-cli download {model} config.json (hf download in newer versions)"
        return f"{said} or in {library.hub_cache()}: {fetch}, or {near}"
    return f"{said}: {near}"


def _decoded(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise DataError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError("is not the configuration of a model: it must be an object with fields")
    return found


TYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "tf32", "fp8": "float8",
    "fp8=rowwise": "float8-rowwise", "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip
FORM = (
    f"write MODEL:GPU[,seqN][,batchN][,{'|'.join(TYPES)}][,ac={'|'.join(CHECKPOINTING)}:P]"
    f"[,stack={'|'.join(STACKS)}][,lora=R|qlora=R[:all-linear]][,frozen=PART[+PART]]"
    f"[,offload={'[+'.join(OFFLOADED)}]][,overlap={TENSOR_OVERLAP}][,input=FILE]"
)
SPELLINGS = {
    **{dtype: short for short, dtype in TYPES.items()},
    "fp8=tensorwise": "fp8",
    **{name: f"stack={name}" for name in STACKS},
    **{name: "stack=te" for maker in ("megatron", "nemo") for name in (maker, f"stack={maker}")},
}
"""Other ways to write a part."""
_SAID = *(f"offload={kind}" for kind in OFFLOADED), f"overlap={TENSOR_OVERLAP}"
MOST_TOKENS = 10**8


@dataclass(frozen=True, slots=True)
class Words:
    """A workload in words, as parts.

    model:    name of an architecture, or path of a configuration
    setting:  GPU, type of element, batch, checkpointing, compilation, and what the host has
    sequence: tokens of a sample; None for the model's usual
    tuning:   what is trained; None for all
    inputs:   path of a file that describes the inputs of the forward; "" for the usual ones
    """

    model: str
    setting: TrainingSetup
    sequence: int | None
    text: str
    tuning: FineTuning | None = None
    inputs: str = ""
    __repr__ = brief


def counted(text: str) -> Workload:
    """The workload that these words describe. Raises as :func:`osfmodel.counting.load_workload`."""
    setting = parse_words(text).setting
    return at_samples(text, setting.batch, profiles.written(setting.gpu))


@lru_cache(maxsize=32)
def at_samples(text: str, batch: int, made: tuple[int, ...] = ()) -> Workload:
    """The workload of these words with so many samples in a micro-batch; ``made``: when its GPU's file was written."""
    words = parse_words(text)
    found = workload_of(model_of(words), replace(words.setting, batch=batch), text)
    return replace(found, recounted=partial(at_samples, text, made=made))


def parse_words(text: str) -> Words:
    """The parts of a workload in words. Raises UsageError."""
    model, rest = model_and_rest(text)
    gpu, *parts = (part.strip() for part in rest.split(","))
    try:
        rates = gpu_of(gpu).rates
        usual = next(dtype for dtype in ("bfloat16", "float16", "float32", *rates) if dtype in rates)
        words = Words(model, TrainingSetup(gpu if in_file(gpu) else gpu_name(gpu), usual), None, text)
        said: set[str] = set()
        for part in parts:
            words = _with(words, part, said)
        if "stack" not in said:
            usual = USUAL_STACKS.get(architecture_name(model).partition("-")[0], EAGER)
            words = replace(words, setting=replace(words.setting, stack=usual))
    except UsageError as error:
        raise UsageError(f"workload {text!r}: {error}") from None
    if words.setting.overlap and words.setting.stack == EAGER:
        raise UsageError(f"workload {text!r}: 'overlap=tp': eager kernels do not overlap: add compile, or stack=te")
    return words


def gpu_said(text: str) -> str:
    """The GPU that words name, whether or not it has their type. Raises UsageError for an unknown one."""
    gpu = model_and_rest(text)[1].split(",")[0].strip()
    return gpu if in_file(gpu) else gpu_name(gpu)


def on_gpu(text: str, gpu: str) -> str:
    """The same words for another GPU."""
    model, rest = model_and_rest(text)
    return ",".join((f"{model}:{gpu}", *rest.split(",")[1:]))


def with_parts(text: str, **parts: str) -> str:
    """The same words with other parts: ``batch="batch2", ac="ac=full"``; "" leaves one out."""
    first, *others = text.split(",")
    spelt = re.compile("|".join(rf"{kind}=?[0-9]+k?|{kind}=.*" for kind in parts) or "(?!)")
    kept = [part for part in others if not spelt.fullmatch(SPELLINGS.get(part.strip(), part.strip()))]
    return ",".join((first, *kept, *filter(None, parts.values())))


def _with(words: Words, part: str, said: set[str]) -> Words:
    """The words with one more part."""
    match = re.fullmatch(r"(seq|batch)=?(-?[0-9]{1,12})(k?)", part)
    part = SPELLINGS.get(part, part)
    adapters = re.fullmatch(r"(q?)lora=([0-9]{1,9})(?::(all-linear))?", part)
    kind = match[1] if match else "lora" if adapters else "type" if part in TYPES else part.partition("=")[0]
    if kind in said:
        raise UsageError(f"{part!r} says {kind} a second time: leave it out")
    said.add(kind)
    setting = words.setting
    if match:
        number = int(match[2]) * (1024 if match[3] else 1)
        if not 1 <= number <= MOST_TOKENS:
            raise UsageError(f"{part!r}: the number must be from 1 to {MOST_TOKENS:,}")
        found = replace(words, sequence=number) if kind == "seq" else None
        return found or replace(words, setting=replace(setting, batch=number))
    tuning = words.tuning or FineTuning()
    if adapters:
        rank, everywhere, packed = int(adapters[2]), bool(adapters[3]), bool(adapters[1])
        if not 1 <= rank <= MOST_RANK:
            raise UsageError(f"{part!r}: the rank must be from 1 to {MOST_RANK:,}")
        return replace(words, tuning=replace(tuning, rank=rank, everywhere=everywhere, packed=packed))
    if kind in ("lora", "qlora"):
        raise UsageError(f"{part!r}: write {kind}=RANK or {kind}=RANK:all-linear, such as {kind}=16")
    if part.startswith("frozen=") and all(names := part.removeprefix("frozen=").split("+")):
        return replace(words, tuning=replace(tuning, frozen=tuple(names)))
    if kind == "frozen":
        raise UsageError(f"{part!r}: write frozen=embeddings, frozen=tower or a module, such as frozen=model.layers.0")
    if kind == "input" and "=" in part and part != "input=":
        return replace(words, inputs=part.removeprefix("input="))
    return replace(words, setting=_set_up(setting, part))


def _set_up(setting: TrainingSetup, part: str) -> TrainingSetup:
    """The setup with one more part."""
    if part in TYPES:
        return replace(setting, dtype=TYPES[part])
    if part.startswith("stack="):
        stack = part.removeprefix("stack=")
        if stack not in STACKS:
            raise UsageError(f"{part!r}: {suggestion(stack, STACKS)}")
        return replace(setting, stack=stack)
    if part.startswith("ac="):
        how, portion = checkpointing_of(part)
        return replace(setting, checkpointing=how, portion=portion)
    if part.startswith("offload="):
        return replace(setting, offload=offload_of(part))
    if part == _SAID[-1]:
        return replace(setting, overlap=TENSOR_OVERLAP)
    digits = "".join(filter(str.isdigit, part))
    numbered = [form.format(digits) for form in ("seq{}", "batch{}", "lora={}", "qlora={}") if digits]
    near = nearest(part, [*TYPES, *STACKS, *(f"stack={name}" for name in STACKS), *_SAID, *numbered], 1, 0.6)
    raise UsageError(f"{part!r} is no part of a workload: {did_you_mean(near) or 'leave it out, or'} {FORM}")


def model_of(words: Words) -> Model:
    """The model that the words name. Raises UsageError or DataError."""
    config = configuration(words.model)
    family = family_of(config)
    if words.inputs:
        if config.word("model_type") not in library.MAKERS:
            remedy = "is for module:function and models of timm and diffusers: leave it out"
            raise UsageError(f"workload {words.text!r}: input={words.inputs} {remedy}")
        from osfmodel.counting.library import inputs  # not loaded for others

        config = replace(config, fields={**config.fields, inputs.FIELD: inputs.from_file(Path(words.inputs))})
    if words.sequence and not family.longest(config):
        raise UsageError(f"workload {words.text!r}: {words.model} has no sequence: leave seq{words.sequence} out")
    if words.tuning and words.tuning.packed and words.setting.dtype in RECIPES:
        narrow = SPELLINGS[words.setting.dtype]
        raise UsageError(f"workload {words.text!r}: 'qlora' unpacks matrices to bf16, fp16 or fp32: leave {narrow} out")
    tokens = words.sequence or usual_tokens(family, config)
    try:
        model = family.build(config, tokens)
    except OptionError as error:
        model = _by_library(config, tokens, error)
    if words.tuning and any(module.frozen for module in model.modules):
        raise UsageError(f"workload {words.text!r}: {words.model} freezes parameters itself: leave lora and frozen out")
    return fine_tuned(model, config.word("model_type"), words.tuning) if words.tuning else model


def _by_library(config: Config, tokens: int, problem: OptionError) -> Model:
    """The model as its library's class has it, since an own family has a problem. Raises DataError without it."""
    try:
        return library.build(config, tokens)
    except UsageError:
        install = f"pip install 'osfmodel[{library.OTHERS[1]}]'"
        raise DataError(f"{problem}: to count it by its class of transformers: {install}") from None
