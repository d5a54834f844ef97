"""The workload in words of a job's file: its model, its GPU, and how it is trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from osfmodel.counting.words import SPELLINGS, TYPES, architecture_name, configuration
from osfmodel.entities.errors import OsfError
from osfmodel.entities.files import profiles
from osfmodel.formats.jobs.job import JobConfig

KINDS = re.compile("(seq|batch|ac|stack|overlap|q?lora|frozen|input)[=0-9]")
TUNED = re.compile(r"(?<=/)meta-(?=llama)|-(instruct|chat|base|it|fp16|bf16)(-.*)?$", re.IGNORECASE)
"""Parts of a name on a hub that say nothing of dimensions."""
UNSIZED = ("model_type", "vocab_size", "max_position_embeddings", "n_positions")
"""Fields by which no architecture is told from others."""


def model_named(job: JobConfig) -> str:
    """The architecture that a job names, or whose dimensions it has; "" where neither leads to one.

    Dimensions of no bundled architecture become words such as ``llama+hidden_size=2048+num_hidden_layers=24``.
    """
    if job.model:
        return _known(job.model)
    fields = {name: value for name, value in job.dimensions.items() if value is not None}
    if not fields:
        return ""
    if "vocab_size" not in fields and (tokenizer := _known(job.tokenizer)):
        fields["vocab_size"] = configuration(tokenizer).value("vocab_size")
    alike = (name for name in profiles.names("architecture") if _alike(name, fields))
    if found := next(alike, ""):
        return found
    if "vocab_size" not in fields:
        return ""
    kind, *sizes = ((name, fields[name]) for name in sorted(fields, key=lambda name: name != "model_type"))
    return "+".join([kind[1], *(f"{name}={value}" for name, value in sizes)])


def _known(model: str) -> str:
    """A model by the name that words give it; "" for one that is nowhere. Code is never loaded for a file's sake."""
    if not model or re.search("[:,+=]", model):
        return ""
    for named in dict.fromkeys((model, TUNED.sub("", model))):
        try:
            configuration(named)
        except OsfError:
            continue
        name = architecture_name(named)
        return name if profiles.files_called(name, "architecture") else named
    return ""


def _alike(name: str, fields: Mapping[str, Any]) -> bool:
    """Whether a bundled architecture has these dimensions."""
    config = configuration(name)
    if config.value("model_type") != fields["model_type"]:
        return False
    words = fields.get("vocab_size")
    sizes = {key: value for key, value in fields.items() if key not in UNSIZED}
    own = {"n_inner": 4 * int(config.value("n_embd") or 0), "num_key_value_heads": config.value("num_attention_heads")}
    near = words is None or abs(int(config.value("vocab_size") or 0) - words) < 1024  # padded
    return near and all((config.value(key) or own.get(key)) == value for key, value in sizes.items())


def words_of(job: JobConfig, gpu: str, model: str = "") -> str:
    """The workload in words; ``model``: as a user gives it, ``NAME[,PART...]``, whose parts go before the file's."""
    name, *given = model.split(",") if model else [model_named(job)]
    parts = {kind: SPELLINGS.get(part, part) for kind, part in job.parts.items()}
    for part in (SPELLINGS.get(one.strip(), one.strip()) for one in given):
        match = KINDS.match(part)
        parts["type" if part in TYPES or match is None else match[1].removeprefix("q")] = part
    if "batch" not in parts and job.batch:
        parts["batch"] = f"batch{job.batch}"
    return ",".join((f"{name or model_named(job)}:{gpu}", *parts.values()))
