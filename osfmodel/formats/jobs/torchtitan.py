"""torchtitan's job config, the inverse of ``targets.torchtitan``; also of older releases, with other tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import prod
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.entities.executors import CONVERTERS, TITAN_DEGREES
from osfmodel.formats.jobs.job import FileKeys, JobConfig, JobFormat

TABLES = ("parallelism", "training", "experimental")
"""Tables that have had the degrees of parallelism."""
FLAVORS: Mapping[tuple[str, str], str] = {
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama4-scout",
    ("llama4", "17bx128e"): "llama4-maverick",
}
"""Architectures that do not go by their name and flavor."""
BATCH, SEQUENCE = 8, 2048
"""torchtitan's defaults."""
BESIDE = (
    r"^(job|profiling|metrics|lr_scheduler|checkpoint|comm|validation|debug|fault_tolerance)\.|^optimizer\.(lr|eps|beta"
    r"|weight_decay|implementation|fused)|^model\.(hf_assets|tokenizer|print|norm_type)|^training\.(steps|dataset"
    r"|max_norm|warmup|seed|determin|gc_freq)|^(quantize|float8|mx)\.|^compile\.components"
    r"|^parallelism\.(disable_)?loss_parallel"
)


def decode(text: str) -> Mapping[str, Any]:
    """The tables. Raises DataError for text that is not TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DataError(f"is not TOML: {error}") from None


def read(keys: FileKeys) -> JobConfig:
    """The job. Raises DataError for values that no job has."""
    notes: list[str] = []
    groups = keys.sizes({kind: _keys(name) for kind, name in TITAN_DEGREES.items()})
    replicas = keys.count(*_keys("data_parallel_replicate_degree")) or 1
    shards = keys.count(*_keys("data_parallel_shard_degree"), "training.data_parallel_degree", least=-1) or -1
    inside = prod(size for kind, size in groups.items() if kind != "expert")
    gpus = None if shards < 1 else replicas * shards * inside
    name, flavor = keys.word("model.name"), keys.word("model.flavor")
    local, whole = keys.count("training.local_batch_size", "training.batch_size") or BATCH, _positive(keys)
    micro = keys.count(*_keys("pipeline_parallel_microbatch_size")) or 1
    batch = local if "pipeline" not in groups else micro
    if local % batch:
        raise DataError(f"pipeline_parallel_microbatch_size is {batch}: it does not divide the local batch of {local}")
    parts = {
        "seq": f"seq{keys.count('training.seq_len') or SEQUENCE}",
        "type": _type(keys, notes),
        "ac": _checkpointing(keys),
    }
    stack = "compile" if keys.flag("compile.enable", "training.compile") else "eager"
    if stack == "compile" and keys.flag(*_keys("enable_async_tensor_parallel")):
        parts["overlap"] = "overlap=tp"
    if (optimizer := keys.word("optimizer.name")) not in ("", "adam", "adamw"):
        notes.append(f"optimizer {optimizer} is counted as AdamW")
    if keys.values.get("training.mixed_precision_reduce") == "float32":
        keys.word("training.mixed_precision_reduce")  # as it is predicted
    return JobConfig(
        model=FLAVORS.get((name, flavor), f"{name}-{flavor}".strip("-").replace("_", "-")),
        groups=groups,
        plan=_plan(keys, replicas, shards, "context" in groups),
        parts={**{kind: part for kind, part in parts.items() if part}, "stack": f"stack={stack}"},
        replicas=replicas if replicas > 1 else None,
        gpus=gpus,
        batch=batch,
        accumulate=None if whole else local // batch,
        whole=whole,
        notes=tuple(notes),
    )


def _keys(name: str) -> tuple[str, ...]:
    return tuple(f"{table}.{name}" for table in TABLES)


def _positive(keys: FileKeys) -> int | None:
    """The global batch; None for -1, one micro-batch on each rank."""
    found = keys.count("training.global_batch_size", least=-1)
    return found if found and found > 0 else None


def _plan(keys: FileKeys, replicas: int, shards: int, context: bool) -> str:
    reshard = keys.word(*_keys("fsdp_reshard_after_forward"))
    if replicas > 1 and shards == 1 and not context:
        return "ddp"
    return ("hsdp" if replicas > 1 else "fsdp2") + ":keep" * (reshard == "never")


def _type(keys: FileKeys, notes: list[str]) -> str:
    """The type of computation, by the converter of linear layers."""
    said = keys.value("model.converters")
    listed = [str(one) for one in (said if isinstance(said, list) else [said]) if one is not None]
    kinds = {own for own, _ in CONVERTERS.values()}
    linear = [one for one in listed if one.rpartition(".")[2] in kinds and "grouped" not in one]
    if others := [one for one in listed if one not in linear]:
        notes.append(f"converters that are not counted: {', '.join(others)}")
    used = {one.rpartition(".")[2] for one in linear}
    used |= {"float8"} if keys.flag("float8.enable_float8_linear") else set()
    for kind in used:
        recipe = keys.word(f"quantize.linear.{kind}.recipe_name", f"{kind}.recipe_name")
        rows = {dtype: str(more.get("recipe_name", "")) for dtype, (own, more) in CONVERTERS.items() if own == kind}
        return next((dtype for dtype, known in rows.items() if known and recipe.startswith(known)), next(iter(rows)))
    return keys.word("training.mixed_precision_param") or "bfloat16"


def _checkpointing(keys: FileKeys) -> str:
    """The part of the words; one in every N blocks is a portion of them."""
    mode, option = (
        keys.word("activation_checkpoint.mode") or "selective",
        keys.word("activation_checkpoint.selective_ac_option"),
    )
    if mode == "memory_budget":
        return f"ac=budget:{keys.value('activation_checkpoint.memory_budget') or 0.5}"
    if mode == "selective" and option.isdigit() and int(option) > 0:
        return f"ac=full:1/{int(option)}"
    return "" if mode == "none" else f"ac={mode}"


FORMAT = JobFormat(
    "a job config of torchtitan (TOML)", (".toml",), decode,
    ("model.flavor", "parallelism", "activation_checkpoint", "training.seq_len"), BESIDE, read,
    ("ddp", "fsdp2", "fsdp2:keep", "hsdp"),
)  # fmt: skip
