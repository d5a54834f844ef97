"""MODEL_FAMILIES: kinds of models that can be counted, each one module and one line, by ``model_type``.

A family turns a configuration, with the fields that Hugging Face gives it, into modules with names, shapes and work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from osfmodel.counting.config import Config
from osfmodel.counting.families import llama
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
    return config.count("max_position_embeddings", "n_positions", "max_seq_len")


MODEL_FAMILIES: Mapping[str, ModelFamily] = {
    **{kind: ModelFamily(llama.build, _positions) for kind in llama.RELATIVES},
}
"""By ``model_type``."""
