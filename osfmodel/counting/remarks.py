"""Remarks on how a workload in words was counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from osfmodel.counting import library
from osfmodel.counting.finetuning import ADDED_TO
from osfmodel.counting.modules import Model
from osfmodel.counting.stacks import STACKS, USUAL_STACKS
from osfmodel.counting.training import checkpointed
from osfmodel.counting.words import Words, configuration, family_of, model_of, parse_words
from osfmodel.entities.errors import OsfError

PREDICTING = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Fields with a number of layers for multi-token prediction."""


@lru_cache(maxsize=16)
def remarks(text: str) -> tuple[str, ...]:
    """Remarks on samples that are longer than the configuration's positions, on weights that are quantised, on layers
    that are left out, and on how the model was counted."""
    try:
        words = parse_words(text)
        config = configuration(words.model)
        longest = family_of(config).longest(config)
        model = model_of(words)
    except OsfError:
        return ()
    said = []
    stack = words.setting.stack
    if stack in USUAL_STACKS.values() and stack not in text:
        said.append(f"{words.model} is counted as it was trained, by {STACKS[stack].said}: others with stack=NAME")
    said += _shares(text, words, model)
    if longest and (words.sequence or 0) > longest:
        reach = f"{words.model} has positions for {longest:,} tokens (max_position_embeddings)"
        said.append(f"{reach}: samples of {words.sequence:,} are counted as if they reached that far")
    if words.tuning and words.tuning.everywhere and config.word("model_type") in ADDED_TO:
        said.append(
            "PEFT adds the adapters of experts to their weights in each forward: a second copy of these is kept for "
            "backward, and no less of them is computed than in full training"
        )
    if words.inputs:
        from osfmodel.counting.library.inputs import unsampled  # not loaded for others

        said += unsampled(words.inputs)
    if config.fields.get("quantization_config") and not (words.tuning and words.tuning.packed):
        frozen = words.tuning and words.tuning.rank
        how = "in the type of computation: qlora=R has 4 bits" if frozen else "as trained in full"
        said.append(f"the weights of {words.model} are quantised (quantization_config): counted {how}")
    for name in PREDICTING:
        layers = [found for part in library.parts(config) if isinstance(found := part.get(name), int) and found > 0]
        if layers and not any("mtp" in one.name for one in model.modules):
            what = f"{layers[0]} for multi-token prediction ({name})"
            said.append(
                f"of the layers of {words.model} {what}, which its class in transformers leaves out, are not counted"
            )
    return (*said, *model.notes)


def _shares(text: str, words: Words, model: Model) -> Iterator[str]:
    """A remark on a part of the blocks to checkpoint that is written of another number of blocks."""
    count = len(model.blocks)
    for part, some, whole in re.findall(r"\b(ac=(?:full|selective):(\d+)/(\d+))", text):
        if int(whole) != count and (some != "1" or count % int(whole)):
            taken = len(checkpointed(model, words.setting))
            yield f"{words.model} has {count} blocks: {part} is taken as a share, {taken} of them"
