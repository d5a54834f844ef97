"""Megatron-LM's arguments in a script or a file, the inverse of ``targets.megatron``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osfmodel.entities.executors import MEGATRON_DEGREES, PRECISION, RECOMPUTED
from osfmodel.formats.jobs.job import FileKeys, JobConfig, JobFormat
from osfmodel.formats.jobs.shell import arguments

VOCABULARY = {"gpt2bpetokenizer": 50257, "llama2tokenizer": 32000, "llama3tokenizer": 128256}
"""Words that a type of tokenizer has."""
BESIDE = (
    r"^(lr|min_lr|adam|weight_decay|clip_grad|decoupled|start_weight|end_weight|sgd|init_method|loss_scale|initial_loss"
    r"|min_loss|hysteresis|log|timing|tensorboard|wandb|eval|save|load|train_|data|mock|split|tokenizer|vocab_file|merge"
    r"|seed|num_workers|no_load|no_save|dist|master|node_rank|rdzv|ckpt|use_checkpoint|exit|finetune|override|manual_gc"
    r"|rotary|position|norm_epsilon|attention_dropout|hidden_dropout|no_masked|no_mmap|no_create|use_mcore|max_position"
    r"|moe_aux|moe_z|moe_router_(load|score|dtype|pre|topk_sc|bias)|moe_token_disp|moe_grouped|mscale|job|local_rank"
    r"|profile|tiktoken|make_vocab|calculate|empty_unused|async_save|auto_detect|use_dist|reset|eod|reuse|lazy|test"
    r"|valid|warmup|override|fp8_(amax|margin|interval)|no_initialization|use_cpu_init|accumulate_allreduce|bias_.*_fusion"
    r"|no_(bias|rope)|apply_layernorm|attention_softmax|enable_experimental|attention_backend|use_flash_attn"
    r"|use_rotary|no_position|group_query|untie|disable_bias|cross_entropy_(loss_fusion|fusion)|normalization|gpus_per_node|hostfile)"
)


IMPLEMENTATIONS = {"local": "--transformer-impl local is predicted as Transformer Engine"}
"""Notes on implementations of a layer that are predicted as another one."""


def read(keys: FileKeys) -> JobConfig:
    """The job. Raises DataError for values that no job has."""
    groups = keys.sizes({kind: (name,) for kind, name in MEGATRON_DEGREES.items()})
    each, nodes = keys.count("nproc_per_node", "num_gpus"), keys.count("nnodes", "num_nodes") or 1
    notes = []
    if "tensor" in groups and not keys.flag("sequence_parallel"):
        notes.append("--sequence-parallel is not given, and predicted all the same")
    sequence, stack = keys.count("seq_length"), "te"
    ac, layers = _recomputed(keys), keys.count("num_layers")
    if ac == "ac=full" and keys.word("recompute_method") == "block" and layers:
        layers_each = layers // groups.get("pipeline", 1)
        ac = f"ac=full:{min(keys.count('recompute_num_layers') or 1, layers_each)}/{layers_each}"
    keys.word("recompute_method", "recompute_num_layers")
    if note := IMPLEMENTATIONS.get(keys.word("transformer_impl")):
        notes.append(note)
    parts = {"seq": f"seq{sequence}" if sequence else "", "type": _type(keys, notes), "ac": ac}
    parts |= {"overlap": "overlap=tp"} if keys.flag("tp_comm_overlap") else {}
    return JobConfig(
        dimensions=_dimensions(keys, notes),
        tokenizer=str(keys.value("tokenizer_model") or ""),
        groups=groups,
        plan=_plan(keys, notes),
        parts={**{kind: part for kind, part in parts.items() if part}, "stack": f"stack={stack}"},
        gpus=each * nodes if each else None,
        batch=keys.count("micro_batch_size"),
        whole=keys.count("global_batch_size"),
        notes=tuple(notes),
    )


def _plan(keys: FileKeys, notes: list[str]) -> str:
    """The named plan of the optimizer and of overlap."""
    overlap, gathers = keys.flag("overlap_grad_reduce"), keys.flag("overlap_param_gather")
    sharded = keys.word("data_parallel_sharding_strategy") == "optim_grads_params"
    if keys.flag("use_torch_fsdp2") or (keys.flag("use_megatron_fsdp", "use_custom_fsdp") and sharded):
        return "fsdp2"
    if keys.flag("use_distributed_optimizer"):
        if not (overlap and gathers):
            notes.append(
                "--overlap-grad-reduce and --overlap-param-gather are not both given, and predicted all the same"
            )
        return "distributed-optimizer"
    return "megatron" if overlap else "single"


def _recomputed(keys: FileKeys) -> str:
    said = keys.word("recompute_granularity")
    old = keys.word("activations_checkpoint_method", "checkpoint_activations")
    if not said and (keys.flag("recompute_activations") or old):
        said = "full" if old else "selective"
    return f"ac={said}" if said in RECOMPUTED else ""


def _type(keys: FileKeys, notes: list[str]) -> str:
    """The type of computation: of the narrow rows of PRECISION that of the recipe."""
    wide = next(
        (dtype for dtype in PRECISION if len(PRECISION[dtype]) == 1 and keys.flag(*PRECISION[dtype])), "float32"
    )
    for bits in ("fp8", "fp4"):
        if not keys.word(f"{bits}_format", bits):
            continue
        recipe, rows = keys.word(f"{bits}_recipe"), [one for one in PRECISION if f"{bits}_recipe" in PRECISION[one]]
        found = next((one for one in rows if PRECISION[one][f"{bits}_recipe"] == recipe), rows[0])
        if recipe not in ("", "delayed", *(row.get(f"{bits}_recipe") for row in PRECISION.values())):
            notes.append(f"--{bits}-recipe {recipe} is predicted as {found}")
        return found
    return wide


def _dimensions(keys: FileKeys, notes: list[str]) -> dict[str, Any]:
    """The fields of a configuration: of a decoder after Llama with --swiglu, of GPT-2 without; {} if it is neither."""
    hidden, heads, layers = (keys.count(name) for name in ("hidden_size", "num_attention_heads", "num_layers"))
    gated, experts, inner = keys.flag("swiglu"), keys.count("num_experts"), keys.count("ffn_hidden_size")
    of_expert = keys.count("moe_ffn_hidden_size")
    words = keys.count("vocab_size", "padded_vocab_size") or VOCABULARY.get(keys.word("tokenizer_type"))
    longest, shared = keys.count("max_position_embeddings"), keys.word("moe_shared_expert_intermediate_size")
    if not (hidden and heads and layers):
        return {}
    if keys.flag("multi_latent_attention") or shared or (experts and not gated):
        notes.append(
            "the model's dimensions are not counted: latent attention, shared experts, or experts without gate"
        )
        return {}
    found: dict[str, Any] = {"vocab_size": words, "max_position_embeddings": longest}
    if not gated:
        sizes = {"n_embd": hidden, "n_inner": inner or 4 * hidden, "n_layer": layers, "n_head": heads}
        return {"model_type": "gpt2", **sizes, "n_positions": longest or 1024, "vocab_size": words}
    kind = "qwen3" if keys.flag("qk_layernorm") else "qwen2" if keys.flag("add_qkv_bias") else "llama"
    found |= {"model_type": kind, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    found["num_key_value_heads"] = keys.count("num_query_groups") or heads
    found["intermediate_size"] = inner or int(4 * hidden * 2 / 3) // 64 * 64
    found |= {"head_dim": width} if (width := keys.count("kv_channels")) and width * heads != hidden else {}
    if experts:
        number, narrow = keys.count("moe_router_topk") or 2, of_expert or found["intermediate_size"]
        own = {"num_experts": experts, "moe_intermediate_size": narrow}
        mixtral = {"model_type": "mixtral", "num_local_experts": experts, "intermediate_size": narrow}
        found |= {**(own if kind == "qwen3" else mixtral), "num_experts_per_tok": number}
        found["model_type"] = "qwen3_moe" if kind == "qwen3" else "mixtral"
    return found


def decode(text: str) -> Mapping[str, Any]:
    """The arguments of the script's command."""
    return arguments(text)


SIGNS = ("tensor_model_parallel_size", "num_layers", "micro_batch_size")
FORMAT = JobFormat(
    "a script that runs Megatron-LM, or a file of its arguments",
    (".sh", ".bash", ".args", ".txt", ".slurm", ".sbatch"),
    decode,
    SIGNS,
    BESIDE,
    read,
    ("megatron", "distributed-optimizer", "fsdp2"),
)
