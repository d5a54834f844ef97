"""YAML of Hugging Face's tools: Accelerate's configuration, and those of trainers on it, such as Axolotl and TRL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from osfmodel.formats.jobs.job import FileKeys, JobConfig, JobFormat

BESIDE = (
    r"^(compute_environment|debug|downcast|enable_cpu_aff|machine_rank|main_|rdzv|same_network|tpu|use_cpu|num_machines"
    r"|tokenizer|hub|strict|data|val_|output|lora_(alpha|dropout|model|fan|modules)|wandb|mlflow|comet|num_(train_)?epochs"
    r"|lr|learning|cosine|warmup|weight_decay|max_(grad|steps)|train_on|group_by|early|resume|local_rank|logging|eval|save"
    r"|special|special_tokens|seed|report|chat_template|template|trust|model_type|type_of_model|flash_attention|attn_impl"
    r"|sdp|xformers|liger|plugins|test_|ddp_timeout|push|run_name|preprocess|overwrite|stage$|do_|plot|dpo|beta|rl$|bnb"
    r"|gradient_checkpointing_kwargs|deepspeed_config\.(zero3|gradient_clip|deepspeed_(multi|host))"
    r"|(fsdp_config\.(fsdp_)?|fsdp_)(auto_wrap|transformer_layer|state_dict|cpu_ram|sync_module|use_orig|backward|forward"
    r"|limit|min_num|final_state)|adam_|optim_args|remove_unused|num_workers|dataset|shuffle|pad_to|sample_pack|packing"
    r"|load_best|metric|auto_resume|fp8_config|is_|relora|neftune|flex)"
)
SHARDING = {"1": "full_shard", "2": "shard_grad_op", "3": "no_shard", "4": "hybrid_shard", "5": "hybrid_shard_zero2"}
"""Sharding strategies by their numbers."""
REPLICATED = ("shard_grad_op", "hybrid_shard_zero2")


def decode(text: str) -> Mapping[str, Any]:
    """The settings; {} for what is no mapping in YAML, as another tool's file is."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}


def read(keys: FileKeys) -> JobConfig:
    """The job. Raises DataError for values that no job has."""
    notes: list[str] = []
    groups = keys.sizes({
        "tensor": ("parallelism_config.parallelism_config_tp_size", "tensor_parallel_size",
                   "megatron_lm_config.megatron_lm_tp_degree"),
        "context": ("parallelism_config.parallelism_config_cp_size", "context_parallel_size",
                    "sequence_parallel_degree"),
        "pipeline": ("megatron_lm_config.megatron_lm_pp_degree",),
    })  # fmt: skip
    tokens = keys.count("sequence_len", "cutoff_len", "max_seq_length", "max_length", "model_max_length")
    compiled = keys.flag("torch_compile") or keys.word("dynamo_config.dynamo_backend") not in ("", "no")
    parts = {
        "seq": f"seq{tokens}" if tokens else "",
        "type": _type(keys),
        "ac": "ac=full" if _checkpointed(keys) else "",
        "lora": _adapters(keys),
        "stack": "stack=compile" if compiled else "stack=eager",
    }
    plan = _plan(keys, notes)
    if (optimizer := keys.word("optimizer", "optim")) and not optimizer.startswith("adam"):
        notes.append(f"optimizer {optimizer} is counted as AdamW")
    return JobConfig(
        model=str(keys.value("base_model", "model_name_or_path") or ""),
        groups=groups,
        plan=plan,
        parts={kind: part for kind, part in parts.items() if part},
        replicas=_replicas(keys) if _replicas(keys) > 1 else None,
        gpus=keys.count("num_processes"),
        batch=keys.count("micro_batch_size", "per_device_train_batch_size"),
        accumulate=keys.count("gradient_accumulation_steps", "deepspeed_config.gradient_accumulation_steps",
                              "megatron_lm_config.megatron_lm_num_micro_batches"),
        notes=tuple(notes),
    )  # fmt: skip


def _plan(keys: FileKeys, notes: list[str]) -> str:
    """The named plan of DeepSpeed's stage, of FSDP's strategy, or of DDP."""
    kind, said = keys.word("distributed_type"), keys.word("deepspeed", "deepspeed_config.deepspeed_config_file")
    stage = keys.count("deepspeed_config.zero_stage", least=0)
    if stage is None and said:
        named = re.search(r"z(?:ero)?[_-]?(?:stage[_-]?)?([0-3])", said)
        notes.append(f"{said} is not read: {f'stage {named[1]} of ZeRO, by its name' if named else 'DDP is taken'}")
        stage = int(named[1]) if named else 0
    if stage is not None:
        return f"zero-{stage}" if stage else "ddp"
    if kind == "megatron_lm":
        return (
            "distributed-optimizer"
            if keys.flag("megatron_lm_config.megatron_lm_use_distributed_optimizer")
            else "megatron"
        )
    strategy, listed = (
        keys.word("fsdp_config.fsdp_sharding_strategy", "fsdp_config.sharding_strategy"),
        keys.word("fsdp"),
    )
    strategy = SHARDING.get(strategy, strategy) or next((one for one in SHARDING.values() if one in listed), "")
    if not (strategy or listed or kind == "fsdp" or any(key.startswith("fsdp_config.") for key in keys.values)):
        return "ddp"
    reshard = keys.word("fsdp_config.fsdp_reshard_after_forward", "fsdp_config.reshard_after_forward")
    second = "2" in (keys.word("fsdp_version"), keys.word("fsdp_config.fsdp_version"), keys.word("fsdp_config.version"))
    kept = reshard == "false" or strategy in REPLICATED or reshard in REPLICATED
    keys.word("parallelism_config.parallelism_config_dp_shard_size", "dp_shard_size")
    if strategy == "no_shard":
        return "ddp"
    if _replicas(keys) > 1 or strategy.startswith("hybrid") or reshard.startswith("hybrid"):
        return "hsdp" + ":keep" * kept
    return "fsdp2:keep" if kept else "fsdp2" if second else "fsdp1"


def _replicas(keys: FileKeys) -> int:
    return keys.count("parallelism_config.parallelism_config_dp_replicate_size", "dp_replicate_size") or 1


def _type(keys: FileKeys) -> str:
    mixed = keys.word("mixed_precision")
    found = {"fp8": "float8", "bf16": "bfloat16", "fp16": "float16", "no": "float32"}.get(mixed, "")
    if keys.flag("fp8"):
        return "float8"
    for name, dtype in (("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("fp16", "float16"), ("tf32", "tf32")):
        found = found or (dtype if keys.flag(name) else "")
    return found


def _checkpointed(keys: FileKeys) -> bool:
    said = keys.word("gradient_checkpointing")
    inside = keys.flag(
        "fsdp_config.fsdp_activation_checkpointing", "fsdp_config.activation_checkpointing",
        "megatron_lm_config.megatron_lm_recompute_activations",
    )  # fmt: skip
    return said not in ("", "false", "no") or inside


def _adapters(keys: FileKeys) -> str:
    kind = keys.word("adapter", "finetuning_type")
    packed, peft = keys.flag("load_in_4bit") or keys.word("quantization_bit") == "4", keys.flag("use_peft")
    rank = keys.count("lora_r", "lora_rank") or 8
    linear = keys.flag("lora_target_linear") or keys.word("lora_target", "lora_target_modules") in ("all", "all-linear")
    if kind not in ("lora", "qlora") and not peft:
        return ""
    return f"{'qlora' if kind == 'qlora' or packed else 'lora'}={rank}{':all-linear' * linear}"


FORMAT = JobFormat(
    "a configuration of Accelerate, or of a trainer on it, such as Axolotl (YAML)", (".yaml", ".yml"), decode,
    ("distributed_type", "fsdp_config", "deepspeed_config", "base_model", "model_name_or_path"), BESIDE, read,
    ("ddp", "zero-1", "zero-2", "zero-3", "fsdp2", "fsdp2:keep", "hsdp"),
)  # fmt: skip
