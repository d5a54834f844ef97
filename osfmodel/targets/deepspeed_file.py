"""DeepSpeed's configuration file, whatever the stage of ZeRO."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from osfmodel.entities.dtypes import SHORT_NAMES
from osfmodel.entities.savings import OPTIMIZER
from osfmodel.entities.workload import Workload
from osfmodel.targets.target import Accumulation, Launch, SettingsText


def settings(
    zero: Mapping[str, Any], gather_dtype: str, reduce_dtype: str, offload: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The settings in DeepSpeed's JSON; ``zero`` are those of ``zero_optimization``, ``offload``: what the host has.

    Types are stated where the plan states them: that of parameters, and that of reductions.
    """
    found: dict[str, Any] = {}
    if gather_dtype in ("bfloat16", "float16"):
        found[SHORT_NAMES[gather_dtype]] = {"enabled": True}
    if reduce_dtype:
        found["communication_data_type"] = SHORT_NAMES[reduce_dtype]
    host = {"offload_optimizer": {"device": "cpu", "pin_memory": True}} if OPTIMIZER in offload else {}
    return {**found, "zero_optimization": {**zero, **host}}


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


def file_of(
    config: Callable[[Any], dict[str, Any]],
    template: str,
    words: Callable[[Any, Workload], Mapping[str, Any]],
    caveats: Callable[[Workload], tuple[str, ...]],
) -> SettingsText:
    """The text of settings: Hjson with the comments of ``template``, since DeepSpeed reads that, or plain JSON.

    config:   knobs -> the JSON document
    words:    (knobs, workload) -> values of the template beside its ``document``
    """

    def render(knobs: Any, workload: Workload) -> str:
        return template.format(**words(knobs, workload), document=document(config(knobs)).rstrip())

    return SettingsText(
        config=config,
        render=render,
        ending=".hjson",
        files={".json": lambda knobs, workload: document(config(knobs))},
        caveats=caveats,
        accumulation=ACCUMULATION,
        offloads=(OPTIMIZER,),
    )
