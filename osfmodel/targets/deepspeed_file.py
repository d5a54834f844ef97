"""DeepSpeed's configuration file, whatever the stage of ZeRO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from osfmodel.entities.dtypes import SHORT_NAMES
from osfmodel.targets.target import Accumulation, Launch


def settings(zero: Mapping[str, Any], gather_dtype: str, reduce_dtype: str) -> dict[str, Any]:
    """The settings in DeepSpeed's JSON; ``zero`` are those of ``zero_optimization``.

    Types are stated where the plan states them: that of parameters, and that of reductions.
    """
    found: dict[str, Any] = {}
    if gather_dtype in ("bfloat16", "float16"):
        found[SHORT_NAMES[gather_dtype]] = {"enabled": True}
    if reduce_dtype:
        found["communication_data_type"] = SHORT_NAMES[reduce_dtype]
    return {**found, "zero_optimization": dict(zero)}


def document(config: Mapping[str, Any]) -> str:
    """The configuration without comments, for readers of plain JSON."""
    return json.dumps(config, indent=2) + "\n"


def _accumulate(text: str, ending: str, count: int) -> str:
    """The configuration with ``gradient_accumulation_steps``."""
    return text.replace("{\n", f'{{\n  "gradient_accumulation_steps": {count},\n', 1)


ACCUMULATION = Accumulation(_accumulate, lambda count: {"gradient_accumulation_steps": count})
LAUNCH = Launch(
    arguments=lambda knobs: "--deepspeed --deepspeed_config deepspeed.json",
    script="deepspeed.json: your file, merged with what this command writes without --lines (-o settings.json)",
)
