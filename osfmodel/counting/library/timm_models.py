"""Count a model of timm on the meta device: by its name, or by a ``config.json`` as timm writes it for the hub."""

from __future__ import annotations

from typing import Any

from osfmodel.counting.config import Config
from osfmodel.counting.library import inputs
from osfmodel.counting.library.counted import count_module, make_module, quiet
from osfmodel.counting.modules import Model
from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import did_you_mean, suggestion

TAKEN = ("num_classes", "global_pool")
"""Fields of a configuration that a model is made with, beside its ``model_args``."""


def count(config: Config, tokens: int) -> Model:
    """The model of a configuration for one image of its own size. Raises UsageError for a name that timm has not."""
    with quiet():
        import timm

        name, given = config.word("architecture"), config.fields
        plain, known = name.partition(".")[0], timm.list_models()
        if plain not in known:
            begun = sorted((one for one in known if plain and one.startswith(plain)), key=len)[:3]
            near = did_you_mean(begun) or suggestion(plain, known, "timm.list_models() has all", most=3)
            raise UsageError(f"timm {timm.__version__} has no model {name!r}: {near}")
        fields = {one: given[one] for one in TAKEN if given.get(one) is not None}
        fields |= given.get("model_args") or {}
        module: Any = make_module(config.name, lambda: timm.create_model(name, **fields))
        sizes = config.part("pretrained_cfg").fields if given.get("pretrained_cfg") else {}
        shape = sizes.get("input_size") or module.pretrained_cfg.get("input_size") or (3, 224, 224)
        example = {inputs.wanted(module)[0]: inputs.tensor(inputs.SAMPLES, *shape)}
        return count_module(config.name, module, [example], tokens, config.fields.get(inputs.FIELD))
