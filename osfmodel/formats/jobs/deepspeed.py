"""DeepSpeed's configuration, the inverse of ``targets.deepspeed`` and ``targets.zero_3``, as JSON or Hjson."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from osfmodel.entities.errors import DataError
from osfmodel.entities.sharding import BUCKET_ELEMENTS
from osfmodel.formats.jobs.job import FileKeys, JobConfig, JobFormat

BESIDE = (
    r"^(optimizer\.params|scheduler|gradient_clipping|prescale|steps_per_print|wall_clock|zero_allow|aio|tensorboard|wandb"
    r"|csv_monitor|flops_profiler|comms_logger|dump_state|checkpoint|memory_breakdown|gradient_predivide|zero_force"
    r"|(fp16|bf16)\.(loss|initial|hyst|min|auto|consec)|zero_optimization\.(contiguous|sub_group|load_from|ignore_unused"
    r"|elastic|stage3_gather|round_robin|reduce_scatter|allgather_partitions|.*\.(pin_memory|buffer|max_in|fast_init"
    r"|pipeline|ratio|nvme_path)))"
)


def decode(text: str) -> Mapping[str, Any]:
    """The settings; {} for what is no JSON object, as another tool's file is."""
    try:
        found = json.loads(re.sub(r"^\s*(#|//).*$", "", text, flags=re.MULTILINE))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read(keys: FileKeys) -> JobConfig:
    """The job. Raises DataError for values that no job has."""
    stage = keys.count("zero_optimization.stage", least=0) or 0
    if stage > 3:
        raise DataError(f"zero_optimization.stage is {stage}: it must be from 0 to 3")
    groups = keys.sizes({
        "tensor": ("tensor_parallel.autotp_size", "tensor_parallel.tp_size"),
        "context": ("sequence_parallel_size",),
    })  # fmt: skip
    whole, batch = keys.count("train_batch_size"), keys.count("train_micro_batch_size_per_gpu")
    accumulate = keys.count("gradient_accumulation_steps")
    gpus = None
    if whole and batch and accumulate:
        replicas, rest = divmod(whole, batch * accumulate)
        if rest or not replicas:
            raise DataError(
                f"train_batch_size is {whole}: it must be a multiple of train_micro_batch_size_per_gpu times "
                f"gradient_accumulation_steps, {batch * accumulate}"
            )
        gpus = replicas * groups.get("tensor", 1) * groups.get("context", 1)
    notes = []
    if (optimizer := keys.word("optimizer.type")) not in ("", "adam", "adamw"):
        notes.append(f"optimizer {optimizer} is counted as AdamW")
    return JobConfig(
        groups=groups,
        plan=_plan(keys, stage) if stage else "ddp",
        parts={"type": precision(keys)} if precision(keys) else {},
        gpus=gpus,
        batch=batch,
        accumulate=accumulate,
        whole=whole,
        notes=tuple(notes),
    )


def _plan(keys: FileKeys, stage: int) -> str:
    """The plan of a stage, with the settings of its buckets where these are not DeepSpeed's."""
    overlaps = keys.flag("zero_optimization.overlap_comm")
    if stage == 3:
        return "zero-3"
    size = keys.count("zero_optimization.reduce_bucket_size")
    said = [str(size)] * (size not in (None, BUCKET_ELEMENTS)) + ["overlap"] * overlaps
    return f"zero-{stage}" + ":" * bool(said) + ",".join(said)


def precision(keys: FileKeys) -> str:
    """The type of computation; "" where the file leaves it to the trainer."""
    on = {"bfloat16": keys.flag("bf16.enabled", "bfloat16.enabled"), "float16": keys.flag("fp16.enabled")}
    said = any(f"{name}.enabled" in keys.values for name in ("bf16", "bfloat16", "fp16"))
    open_ = any(keys.values.get(f"{name}.enabled") == "auto" for name in ("bf16", "bfloat16", "fp16"))
    return next((dtype for dtype, used in on.items() if used), "" if open_ or not said else "float32")


FORMAT = JobFormat(
    "a configuration of DeepSpeed (JSON)", (".json", ".hjson"), decode,
    ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"), BESIDE, read,
    ("ddp", "zero-1", "zero-2", "zero-3"),
)  # fmt: skip
