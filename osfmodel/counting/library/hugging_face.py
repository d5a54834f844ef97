"""Count a configuration of transformers by the library's own class on the meta device, with inputs of its own sizes."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from osfmodel.counting.config import Config
from osfmodel.counting.library.counted import model_of, one_line, quiet
from osfmodel.counting.library.counter import Counter
from osfmodel.counting.library.examples import Example, parts_of_config
from osfmodel.counting.library.fused import NAME, Kernels, fused
from osfmodel.counting.library.signatures import LAYOUTS, accepted_by, inputs_of
from osfmodel.counting.library.values import knowing
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import DataError
from osfmodel.entities.lookup import suggestion

USUAL, USUAL_ENCODED = 4096, 512
"""Tokens of a sample where nobody says, if the model has positions for them; of one with encoder and decoder."""
WAYS = (NAME, "sdpa", "eager")
"""How attention is implemented: counted by closed forms if the class lets them be replaced."""
UNABLE = (NAME, "attention implementation")
"""Words in errors of a class that knows no such way; after other errors, inputs are not laid out anew for the next."""
KINDS = (
    "ImageTextToText", "SpeechSeq2Seq", "Seq2SeqLM", "MaskedLM", "CausalLM", "CTC", "ZeroShotImageClassification",
    "ImageClassification", "AudioClassification", "VideoClassification", "SemanticSegmentation",
    "ObjectDetection", "DepthEstimation", "TextToWaveform", "MaskedImageModeling", "PreTraining",
)  # fmt: skip
"""Automatic classes by what they are trained for, the first that has a type is taken."""
TURNED_OFF = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "apply_spec_augment", "use_cache")
"""Fields that leave layers or parts of inputs out by chance, or keep keys and values for later tokens."""
TOWERS = {
    "pixel_values": "get_image_features", "input_features": "get_audio_features", "input_values": "get_audio_features",
}  # fmt: skip
"""By the name of an input beside a text: the method that runs its tower."""


PLACE = re.compile(r"(image|video|audio|media)_token_(id|index)")
"""Fields with the token that stands for something else; 0 where there is none."""


class Given(NamedTuple):
    """Whether inputs that can be left out, such as masks, are given to a model and to its tower; where that runs.

    where: apart, together with the model, or nowhere; "" for apart from a model that makes texts, together with others
    """

    model: bool
    tower: bool
    where: str = ""


class Forward(NamedTuple):
    """A forward that ran: names of its inputs, elements of its logits, inputs of towers that did not run."""

    given: Collection[str]
    logits: int
    left_out: Collection[str] = ()


GIVEN = (Given(False, True), Given(True, True), Given(True, False, "apart"), Given(False, False, "apart"),
         Given(True, True, "together"))  # fmt: skip
"""Tried for each layout, one after the other."""
Way = tuple[int, Given]
TRIED = tuple((layout, given) for layout in range(LAYOUTS) for given in GIVEN)
"""Tried one after the other, each way with all layouts of inputs."""
TEXT_ALONE = Given(False, False, "nowhere")
"""Tried last."""
DEEP, MODULES = 5, 40
"""Forwards that may fail behind so many modules before no other layout is tried, as that is seldom the reason."""
DENSE = "causal attention is counted whole: its class of transformers computes it by plain products (eager)"
ALONE = "{0!r} and what takes it is not counted: its class of transformers takes it with its own tokens alone"
TEXT = ("input_ids", "attention_mask")
"""Inputs that stay those of the language model when a tower took its own."""


def count(config: Config, tokens: int) -> Model:
    """The model of a configuration for samples of ``tokens`` tokens (0: its usual number). Raises DataError."""
    with quiet():
        import transformers

        made = _configuration(transformers, config)
        with _failing(config):
            kind = class_of(transformers, made)
            problem: Exception | None = None
            for how in WAYS:
                unable = problem is None or any(said in str(problem) for said in UNABLE)
                try:
                    return _counted(config.name, kind, made, how, tokens, TRIED if unable else TRIED[:1])
                except Exception as error:
                    problem = error if unable else problem
            raise problem or AssertionError


def _counted(name: str, kind: Any, config: Any, how: str, tokens: int, ways: Collection[Way]) -> Model:
    """The model of a class, with its attention implemented in one way, and inputs laid out in the first that fits."""
    import torch
    from transformers.initialization import no_init_weights

    kernels = Kernels()
    usual, positions = USUAL_ENCODED if config.is_encoder_decoder else USUAL, _positions(config)
    text = tokens or min(usual, positions or usual)
    if 0 < positions < text:  # as many rows of a learned table
        _text_config(config).max_position_embeddings = text
    with torch.device("meta"), knowing():
        with no_init_weights():
            model = kind._from_config(copy.deepcopy(config), attn_implementation=how, experts_implementation=NAME)
        model.tie_weights()
        model.train()
        counter, ran = _run(model, kernels, text, ways)
    shapes = {one: tuple(tensor.shape) for one, tensor in model.named_parameters()}
    length = text if "input_ids" in ran.given else 0
    made = model_of(name, counter, shapes, length, ran.logits, _row_parallel(model))
    notes = [DENSE] if counter.plain_scores and not counter.attended and model.can_generate() else []
    return replace(made, notes=(*notes, *(ALONE.format(one) for one in ran.left_out)))


def _run(model: Any, kernels: Kernels, tokens: int, ways: Collection[Way]) -> tuple[Counter, Forward]:
    """Run the forward of a sample with the first inputs that it takes.

    Raises the error of the first inputs if it takes none of them.
    """
    problem: Exception | None = None
    deep = 0
    example = Example(model, model.config, tokens, ())
    for layout, way in (*ways, (0, TEXT_ALONE)):
        if deep > DEEP and way is not TEXT_ALONE:
            continue
        counter = kernels.counter = Counter(model)
        try:
            with fused(model, kernels), counter.counting():
                ran = _forward(example._replace(layout=layout), way)
        except Exception as error:
            problem = problem or error
            deep += len(counter.visits) > MODULES
        else:
            return counter, ran
    raise problem or AssertionError


@contextmanager
def _failing(config: Config) -> Iterator[None]:
    """A context whose errors of libraries become one line."""
    try:
        yield
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:
        kind = config.word("model_type")
        raise DataError(f"{config.name}: models of type {kind!r} cannot be counted: {one_line(error)}") from error


def _configuration(transformers: Any, config: Config) -> Any:
    """The library's configuration. Code that comes with it is never run."""
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    kind = config.word("model_type")
    if kind not in known:
        problem = (
            f"transformers {transformers.__version__} has no such type, and code beside a configuration is never run"
        )
        raise DataError(
            f"{config.name}: models of type {kind!r} cannot be counted: {problem}: {suggestion(kind, known)}"
        )
    fields = {name: value for name, value in config.fields.items() if name != "auto_map"}
    with _failing(config):
        made = known[kind].from_dict(fields)
    for part in parts_of_config(made):
        for name in TURNED_OFF:
            if getattr(part, name, None):
                setattr(part, name, type(getattr(part, name))(0))
        for name in [name for name, value in vars(part).items() if value is None and PLACE.fullmatch(name)]:
            setattr(part, name, 0)
    return made


def class_of(transformers: Any, config: Any) -> Any:
    """The class that the configuration names, or else the first of the automatic ones for its type."""
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if found is not None and getattr(found, "config_class", None) is type(config):
            return found
    for kind in KINDS:
        known = getattr(transformers, f"AutoModelFor{kind}")._model_mapping
        unfit = (kind == "MaskedLM" and getattr(config, "is_decoder", False)) or (
            kind == "CTC" and getattr(config, "vocab_size", 0) is None
        )
        if type(config) in known and not unfit:
            found = _first(known[type(config)])
            if found.config_class is None or isinstance(config, found.config_class):  # not of a part
                return found
    known = transformers.AutoModel._model_mapping
    if type(config) not in known:
        raise DataError("transformers maps the type to no model")
    return _first(known[type(config)])


def _first(found: Any) -> Any:
    return found[0] if isinstance(found, tuple | list) else found


def _text_config(config: Any) -> Any:
    """The configuration of the language model inside one, of the decoder if it has several."""
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def _positions(config: Any) -> int:
    """Tokens that a configuration has positions for; 0 where it does not say."""
    text = _text_config(config)
    found = [getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len")]
    return next((one for one in found if isinstance(one, int) and one > 0), 0)


def _row_parallel(model: Any) -> str:
    """A pattern for the names of modules that the library's plan for tensor parallelism divides by rows."""
    plan = getattr(model, "tp_plan", None) or {}
    rows = [name.replace(".", r"\.").replace("*", r"\d+") for name, how in plan.items() if "rowwise" in str(how)]
    return "|".join(name for name in rows if "lm_head" not in name and "embed" not in name)


def _forward(example: Example, way: Given) -> Forward:
    """Run the forward of a sample.

    The tower of a model of text and images or sound runs by itself, as where its vectors go among those of the text
    depends on the values of tokens.

    way: which of the inputs that it can do without are given
    """
    model = language = example.model
    accepted, main = accepted_by(model.forward), model.main_input_name
    given = inputs_of(example, model.forward, way.model, [main] if isinstance(main, str) else main)
    text, names, left_out = "input_ids" in given, list(given), []
    for name, tower in TOWERS.items():
        if not text or name not in given or accepted[name].default is not None:
            continue
        apart = way.where == "apart" or (not way.where and model.can_generate())
        method = _method(model, tower) if apart else None
        if way.where == "nowhere":
            left_out.append(name)
            del given[name]
        elif method is not None:
            seen = inputs_of(example, method, way.tower)
            method(**seen)
            given = {one: value for one, value in given.items() if one in TEXT or one not in seen}
            inner = getattr(model, "language_model", None)
            language = inner if hasattr(inner, "lm_head") else model
    for name in ("use_cache", "return_loss"):
        if name in accepted:
            given[name] = False
    output = language(**given)
    logits = [value for name, value in output.items() if name.endswith("logits") and text and value.ndim == 3]
    return Forward(names, sum(value.numel() for value in logits), left_out)


def _method(model: Any, name: str) -> Any:
    """The method of that name, of a model or the one inside it, which says what it takes; None where there is none."""
    for holder in (model, model.base_model):
        method = getattr(holder, name, None)
        kinds = {one.kind for one in accepted_by(method).values()} if method else set()
        if method and inspect.Parameter.VAR_POSITIONAL not in kinds:
            return method
    return None
