"""The library's own class of a configuration, on torch's meta device, and a small configuration of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import pytest

from osfmodel.counting.families.llama import RELATIVES


class Library(NamedTuple):
    """How a kind is built by its own library.

    package: that has to be installed
    make:    configuration -> the model, called under the meta device
    small:   random source -> a small configuration
    inputs:  (configuration, tokens) -> positional and keyword arguments of forward for one sample
    """

    package: str
    make: Callable[[Mapping[str, Any]], Any]
    small: Callable[[Any], dict[str, Any]]
    inputs: Callable[[Mapping[str, Any], int], tuple[tuple[Any, ...], dict[str, Any]]]


def _transformers(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """A class of transformers by name, from a configuration of its kind."""

    def make(config: Mapping[str, Any]) -> Any:
        import transformers

        fields = {key: value for key, value in config.items() if key != "model_type"}
        known = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])  # the same by another name
        made = transformers.AutoConfig.for_model(known, **fields, **_no_padding(config["model_type"]))
        made._attn_implementation = made._experts_implementation = "eager"  # as products that torch counts
        kind = getattr(transformers, name)
        return kind.from_config(made) if name.startswith("Auto") else kind(made)

    return make


def _no_padding(kind: str) -> dict[str, Any]:
    """Without a padding token beyond a small vocabulary."""
    return {"pad_token_id": None} if kind in {"phi3", "smollm3", "glm", "glm4"} else {}


def _words(_config: Mapping[str, Any], tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    return (torch.zeros(1, tokens, dtype=torch.long),), {}


def _decoder(source: Any) -> dict[str, Any]:
    groups = source.randint(1, 3)
    heads, head = groups * source.randint(1, 3), 4 * source.randint(1, 4)
    return {
        "hidden_size": heads * head, "intermediate_size": source.randint(5, 90), "num_attention_heads": heads,
        "num_key_value_heads": groups, "num_hidden_layers": source.randint(1, 3), "head_dim": head,
        "vocab_size": source.randint(40, 99), "max_position_embeddings": 64,
    }  # fmt: skip


def _experts(source: Any) -> dict[str, Any]:
    """As many experts as tokens share evenly, under the names that kinds have for it."""
    return {
        **_decoder(source), "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "intermediate_size": 4 * source.randint(2, 9), "moe_intermediate_size": 4 * source.randint(2, 9),
        "num_hidden_layers": 3,
    }  # fmt: skip


def _mixture(source: Any) -> dict[str, Any]:
    fields = {"shared_expert_intermediate_size": source.randint(5, 90), "decoder_sparse_step": source.randint(1, 2)}
    return {**_experts(source), **fields, "mlp_only_layers": source.choice([[], [0], [1]])}


def _deepseek(source: Any) -> dict[str, Any]:
    made = _experts(source)
    made.pop("head_dim")
    return {
        **made, "num_key_value_heads": made["num_attention_heads"], "q_lora_rank": source.choice([None, 12]),
        "kv_lora_rank": 2 * source.randint(3, 9), "qk_nope_head_dim": 8 * source.randint(1, 3), "qk_rope_head_dim": 8,
        "v_head_dim": source.randint(5, 20), "first_k_dense_replace": source.randint(0, 2), "n_group": 1,
        "n_shared_experts": source.randint(1, 3), "topk_group": 1,
    }  # fmt: skip


def _glm_experts(source: Any) -> dict[str, Any]:
    shared = {"n_shared_experts": source.randint(1, 3), "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    return {**_experts(source), **shared, "use_qk_norm": True, "attention_bias": True}


def _all_experts(source: Any) -> dict[str, Any]:
    """All experts for each token, as transformers computes Llama 4."""
    fields = {"intermediate_size_mlp": source.randint(5, 90), "interleave_moe_layer_step": source.randint(1, 2)}
    return {**_experts(source), **fields, "num_experts_per_tok": 4}


def _seen(vision: dict[str, Any], text: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Text of the longest kind that the vocabulary of _decoder has, and images of 16 patches."""
    vision = {**vision, "image_size": 32, "patch_size": 8}
    return {"text_config": text, "vision_config": vision, **others}


def _gemma3(source: Any) -> dict[str, Any]:
    vision = {**_decoder(source), "vision_use_head": source.random() < 0.5}
    return _seen(vision, {**_decoder(source), "model_type": "gemma3_text"}, mm_tokens_per_image=4, image_token_id=5)


def _llama4(source: Any) -> dict[str, Any]:
    vision, joined = _decoder(source), 4 * source.randint(2, 9)
    vision |= {
        "intermediate_size": 4 * vision["hidden_size"], "projector_input_dim": joined, "projector_output_dim": joined,
        "vision_output_dim": joined,
    }  # fmt: skip
    return _seen(vision, {**_all_experts(source), "model_type": "llama4_text", "pad_token_id": None}, image_token_id=5)


def _gpt2(source: Any) -> dict[str, Any]:
    heads = source.randint(1, 4)
    return {
        "n_embd": 8 * heads, "n_head": heads, "n_layer": source.randint(1, 3), "n_positions": source.randint(20, 50),
        "vocab_size": source.randint(40, 99), "n_inner": source.randint(5, 90),
    }  # fmt: skip


def _mpt(source: Any) -> dict[str, Any]:
    heads = 2 ** source.randint(0, 2)
    return {
        "d_model": 8 * heads, "n_heads": heads, "n_layers": source.randint(1, 3), "max_seq_len": 32,
        "vocab_size": source.randint(40, 99),
    }  # fmt: skip


def _opt(source: Any) -> dict[str, Any]:
    made = {key: value for key, value in _decoder(source).items() if key != "intermediate_size"}
    return {**made, "ffn_dim": source.randint(5, 90), "word_embed_proj_dim": None}


def _electra(source: Any) -> dict[str, Any]:
    return {**_bert(source), "embedding_size": source.randint(4, 30)}


def _gptj(source: Any) -> dict[str, Any]:
    return {**_gpt2(source), "rotary_dim": 4}


def _bloom(source: Any) -> dict[str, Any]:
    heads = source.randint(1, 4)
    return {"hidden_size": 4 * heads, "n_head": heads, "n_layer": source.randint(1, 3), "vocab_size": 50}


def _falcon(source: Any) -> dict[str, Any]:
    flags = ("new_decoder_architecture", "multi_query", "parallel_attn", "bias")
    fields = {flag: source.random() < 0.5 for flag in flags}
    made = {key: value for key, value in _decoder(source).items() if key not in {"head_dim", "intermediate_size"}}
    return {**made, **fields, "num_kv_heads": made["num_key_value_heads"], "ffn_hidden_size": source.randint(5, 90)}


def _gpt_neox(source: Any) -> dict[str, Any]:
    return {**_decoder(source), "tie_word_embeddings": source.random() < 0.5}


def _mamba2(source: Any) -> dict[str, Any]:
    groups, width = source.randint(1, 2), source.randint(1, 4)
    heads = groups * source.randint(1, 3)
    return {
        "num_heads": 2 * heads, "head_dim": width, "hidden_size": heads * width, "expand": 2, "n_groups": groups,
        "state_size": source.randint(3, 9), "conv_kernel": source.randint(2, 4), "chunk_size": 8, "vocab_size": 50,
        "num_hidden_layers": source.randint(1, 3), "tie_word_embeddings": source.random() < 0.5,
    }  # fmt: skip


def _bert(source: Any) -> dict[str, Any]:
    return {**_decoder(source), "type_vocab_size": source.randint(1, 3)}


def _distilbert(source: Any) -> dict[str, Any]:
    heads = source.randint(1, 4)
    return {
        "dim": 8 * heads, "n_heads": heads, "n_layers": source.randint(1, 3), "hidden_dim": source.randint(5, 90),
        "vocab_size": source.randint(40, 99), "max_position_embeddings": 64,
    }  # fmt: skip


def _t5(source: Any) -> dict[str, Any]:
    return {
        "d_model": source.randint(5, 40), "d_kv": source.randint(2, 9), "d_ff": source.randint(5, 90),
        "num_layers": source.randint(1, 3), "num_decoder_layers": source.randint(1, 3), "vocab_size": 50,
        "num_heads": source.randint(1, 4), "feed_forward_proj": source.choice(["relu", "gated-gelu"]),
    }  # fmt: skip


def _clip(source: Any) -> dict[str, Any]:
    text, vision = _decoder(source), _decoder(source)
    parts = {"text_config": text, "vision_config": {**vision, "image_size": 32, "patch_size": 8}}
    return {**parts, "projection_dim": source.randint(4, 20)}


def _vit(source: Any) -> dict[str, Any]:
    heads = source.randint(1, 4)
    return {
        "image_size": 32, "patch_size": 8, "num_layers": source.randint(1, 3), "num_heads": heads,
        "hidden_dim": 4 * heads, "mlp_dim": source.randint(5, 90), "num_classes": source.randint(2, 20),
    }  # fmt: skip


def _labelled(source: Any) -> dict[str, Any]:
    made = {key: value for key, value in _decoder(source).items() if key not in ("head_dim", "num_key_value_heads")}
    made |= {"image_size": 32, "patch_size": 8, "qkv_bias": source.random() < 0.5}
    return {**made, "id2label": {number: str(number) for number in range(source.randint(2, 20))}}


def _resnet(source: Any) -> dict[str, Any]:
    return {"image_size": 64, "layers": [source.randint(1, 3) for _ in range(4)], "num_classes": source.randint(2, 20)}


def _convnext(source: Any) -> dict[str, Any]:
    widths = [source.randint(3, 20) for _ in range(4)]
    depths = [source.randint(1, 3) for _ in range(4)]
    return {"image_size": 64, "widths": widths, "depths": depths, "num_classes": source.randint(2, 20)}


def _swin(source: Any) -> dict[str, Any]:
    heads = source.randint(1, 3)
    return {
        "image_size": source.choice([64, 112]), "embed_dim": 4 * heads, "depths": [source.randint(1, 3), 2],
        "num_heads": [heads, 2 * heads], "window_size": source.randint(3, 7), "num_classes": source.randint(2, 20),
    }  # fmt: skip


def _make_vit(config: Mapping[str, Any]) -> Any:
    from torchvision.models import VisionTransformer

    return VisionTransformer(**{key: value for key, value in config.items() if key != "model_type"})


def _make_resnet(config: Mapping[str, Any]) -> Any:
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, config["layers"], num_classes=config["num_classes"])


def _make_convnext(config: Mapping[str, Any]) -> Any:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    widths = [*config["widths"], None]
    stages = [CNBlockConfig(widths[number], widths[number + 1], depth) for number, depth in enumerate(config["depths"])]
    return ConvNeXt(stages, num_classes=config["num_classes"])


def _make_swin(config: Mapping[str, Any]) -> Any:
    from torchvision.models import SwinTransformer

    window = [config["window_size"]] * 2
    same = {key: config[key] for key in ("embed_dim", "depths", "num_heads", "num_classes")}
    return SwinTransformer(patch_size=[4, 4], window_size=window, **same)


def _pairs(_config: Mapping[str, Any], tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    texts = torch.zeros(1, tokens, dtype=torch.long), torch.zeros(1, tokens // 4, dtype=torch.long)
    return (), {"input_ids": texts[0], "decoder_input_ids": texts[1]}


def _looked_at(config: Mapping[str, Any], tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    words, side = torch.zeros(1, tokens, dtype=torch.long), config["vision_config"]["image_size"]
    words[:, :4] = config["image_token_id"]
    return (), {"input_ids": words, "pixel_values": torch.zeros(1, 3, side, side)}


def _captions(config: Mapping[str, Any], _tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    text, side = config["text_config"]["max_position_embeddings"], config["vision_config"]["image_size"]
    return (), {"input_ids": torch.zeros(1, text, dtype=torch.long), "pixel_values": torch.zeros(1, 3, side, side)}


def _images(config: Mapping[str, Any], _tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    return (torch.zeros(1, 3, config["image_size"], config["image_size"]),), {}


_CAUSAL = _transformers("AutoModelForCausalLM")
_SEEING = _transformers("AutoModelForImageTextToText")
LIBRARIES: Mapping[str, Library] = {
    **{kind: Library("transformers", _CAUSAL, _decoder, _words) for kind in RELATIVES},
    **{kind: Library("transformers", _CAUSAL, _experts, _words) for kind in ("mixtral", "olmoe", "gpt_oss")},
    **{kind: Library("transformers", _CAUSAL, _mixture, _words) for kind in ("qwen2_moe", "qwen3_moe")},
    **{kind: Library("transformers", _CAUSAL, _deepseek, _words) for kind in ("deepseek_v2", "deepseek_v3", "kimi_k2")},
    "glm4_moe": Library("transformers", _CAUSAL, _glm_experts, _words),
    "llama4_text": Library("transformers", _CAUSAL, _all_experts, _words),
    "gemma3": Library("transformers", _SEEING, _gemma3, _looked_at),
    "llama4": Library("transformers", _SEEING, _llama4, _looked_at),
    "mamba2": Library("transformers", _CAUSAL, _mamba2, _words),
    "gpt2": Library("transformers", _transformers("GPT2LMHeadModel"), _gpt2, _words),
    "gptj": Library("transformers", _CAUSAL, _gptj, _words),
    "bloom": Library("transformers", _CAUSAL, _bloom, _words),
    "falcon": Library("transformers", _CAUSAL, _falcon, _words),
    "opt": Library("transformers", _CAUSAL, _opt, _words),
    **{
        kind: Library("transformers", _transformers("AutoModelForMaskedLM"), small, _words)
        for kind, small in {"roberta": _bert, "xlm-roberta": _bert, "camembert": _bert, "electra": _electra}.items()
    },
    "mpt": Library("transformers", _transformers("MptForCausalLM"), _mpt, _words),
    "gpt_neox": Library("transformers", _transformers("GPTNeoXForCausalLM"), _gpt_neox, _words),
    "bert": Library("transformers", _transformers("BertForPreTraining"), _bert, _words),
    "distilbert": Library("transformers", _transformers("DistilBertForMaskedLM"), _distilbert, _words),
    "t5": Library("transformers", _transformers("T5ForConditionalGeneration"), _t5, _pairs),
    "clip": Library("transformers", _transformers("CLIPModel"), _clip, _captions),
    "vit": Library("transformers", _transformers("ViTForImageClassification"), _labelled, _images),
    "torchvision-vit": Library("torchvision", _make_vit, _vit, _images),
    "torchvision-resnet": Library("torchvision", _make_resnet, _resnet, _images),
    "torchvision-convnext": Library("torchvision", _make_convnext, _convnext, _images),
    "torchvision-swin": Library("torchvision", _make_swin, _swin, _images),
}
"""By ``model_type``; DLRM is no package that can be installed."""


def library_of(config: Mapping[str, Any], device: str = "meta") -> Any:
    """The library's own model of a configuration; on the meta device without memory. Skips the test without it."""
    torch = pytest.importorskip("torch")
    library = LIBRARIES[config["model_type"]]
    pytest.importorskip(library.package, reason=f"{library.package} is not installed")
    with torch.device(device):
        return library.make(config)


def operations_of(config: Mapping[str, Any], tokens: int) -> tuple[int, int]:
    """Operations of the library's forward for one sample: of products with parameters, and inside attention."""
    model = library_of(config, "cpu")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    positional, keywords = LIBRARIES[config["model_type"]].inputs(config, tokens)
    failing = suppress(AttributeError)  # transformers 5.24 fails behind the last product of Llama 4
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), failing:
        model(*positional, **keywords)
    counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    inside = sum(count for name, count in counts.items() if "bmm" in name)
    return sum(counts.values()) - inside, inside


def kept_by(config: Mapping[str, Any], tokens: int, change: Callable[[Any], Any] = lambda model: model) -> float:
    """Elements of half precision that the library's forward keeps until backward, parameters apart.

    change: of the library's model before, such as by adapters
    """
    model = change(library_of(config, "cpu"))
    import torch

    model = model.to(torch.bfloat16).train()
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("sdpa")
    positional, keywords = LIBRARIES[config["model_type"]].inputs(config, tokens)
    halves = [given.to(torch.bfloat16) if given.is_floating_point() else given for given in positional]
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(*halves, **keywords)
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own) / 2


_SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "head_dim": 8,
}  # fmt: skip
_SEEN = {**_SMALL, "image_size": 32, "patch_size": 8}
_LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
_ENCODED = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 64, "pad_token_id": 0,
}  # fmt: skip
GENERAL: Mapping[str, Mapping[str, Any]] = {
    "modernbert": {**_SMALL, "pad_token_id": 0},
    "qwen3_next": {**_SMALL, **_LINEAR},
    "olmo_hybrid": {**_SMALL, "num_key_value_heads": 4, "num_hidden_layers": 4, "pad_token_id": None},
    "xlstm": {**_SMALL, "num_heads": 2, "chunk_size": 16},
    "recurrent_gemma": {**_SMALL, "num_hidden_layers": 3, "lru_width": 32, "num_key_value_heads": 1},
    "rwkv": {**_SMALL, "context_length": 64, "attention_hidden_size": 32},
    "jetmoe": {**_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8},
    "nllb-moe": {
        **_ENCODED, "num_experts": 4, "encoder_sparse_step": 1, "decoder_sparse_step": 1, "expert_capacity": 64,
    },
    "switch_transformers": {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
        "num_experts": 4, "vocab_size": 64,
    },
    "perceiver": {
        "num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attention_heads": 4, "vocab_size": 64,
        "num_cross_attention_heads": 4, "max_position_embeddings": 64, "num_self_attends_per_block": 2,
    },
    "whisper": {**_ENCODED, "num_mel_bins": 8, "max_source_positions": 32, "max_target_positions": 16},
    "wav2vec2-conformer": {**_SMALL, "conv_dim": [8] * 7, "num_conv_pos_embeddings": 8},
    "timesformer": {**_SEEN, "num_frames": 2},
    "vivit": {**_SEEN, "num_frames": 4, "tubelet_size": [2, 8, 8]},
    "siglip2_vision_model": {**_SEEN, "num_patches": 16},
}  # fmt: skip
"""Small configurations for the general path, by ``model_type``: a draw of ways to attend, to route and to be given."""


def general_operations(config: Mapping[str, Any], tokens: int) -> int:
    """Operations of the forward of a real instance on the CPU, as torch counts them, with the inputs of our own."""
    transformers = pytest.importorskip("transformers")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from osfmodel.counting.library import hugging_face
    from osfmodel.counting.library.examples import Example
    from osfmodel.counting.library.signatures import LAYOUTS

    fields = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **fields)
    for name in filter(partial(hasattr, made), hugging_face.TURNED_OFF):  # what a random number decides
        setattr(made, name, type(getattr(made, name))(0))
    kind = hugging_face.class_of(transformers, made)
    model = kind._from_config(made, attn_implementation="eager", experts_implementation="eager").train()
    for layout in range(LAYOUTS):
        for way in hugging_face.GIVEN:
            with suppress(Exception), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
                hugging_face._forward(Example(model, model.config, tokens, (), layout), way)
                return int(counter.get_total_flops())
    raise AssertionError(f"{config['model_type']}: no inputs fit")
