"""MODEL_FAMILIES: kinds of models that can be counted, each one function and one line, by ``model_type``.

A family turns a configuration, with the fields that Hugging Face or torchvision gives it, into modules with names,
shapes and work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from osfmodel.counting.config import LARGEST, Config
from osfmodel.counting.families import dlrm, images, llama, mamba, multimodal, text
from osfmodel.counting.modules import Model


class ModelFamily(NamedTuple):
    """How a kind of models is counted.

    build:   (configuration, tokens of a sample) -> the model
    longest: (configuration) -> the largest number of tokens; 0 for models whose samples have none
    usual:   tokens of a sample where nobody says
    """

    build: Callable[[Config, int], Model]
    longest: Callable[[Config], int]
    usual: int = 4096


def _positions(config: Config) -> int:
    return config.count("max_position_embeddings", "n_positions")


def _unlimited(_config: Config) -> int:
    return LARGEST


def _none(_config: Config) -> int:
    return 0


MODEL_FAMILIES: Mapping[str, ModelFamily] = {
    **{kind: ModelFamily(llama.build, llama.longest) for kind in llama.RELATIVES},
    "gemma3": ModelFamily(multimodal.gemma3, multimodal.longest),
    "llama4": ModelFamily(multimodal.llama4, multimodal.longest),
    **{kind: ModelFamily(text.plain, _positions) for kind in text.PLAIN},
    **{kind: ModelFamily(text.plain, _unlimited, usual=2048) for kind in ("mpt", "bloom")},
    "mamba2": ModelFamily(mamba.build, _unlimited),
    **{kind: ModelFamily(text.masked, text.masked_longest) for kind in text.MASKED},
    "distilbert": ModelFamily(text.distilbert, _positions),
    "t5": ModelFamily(text.t5, _unlimited, usual=512),
    "clip": ModelFamily(images.clip, _none),
    "vit": ModelFamily(images.hugging_face_vit, _none),
    "torchvision-vit": ModelFamily(images.vit, _none),
    "torchvision-resnet": ModelFamily(images.resnet, _none),
    "torchvision-convnext": ModelFamily(images.convnext, _none),
    "torchvision-swin": ModelFamily(images.swin, _none),
    "dlrm": ModelFamily(dlrm.build, _none),
}
"""By ``model_type``."""
