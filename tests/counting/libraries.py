"""The library's own class of a configuration, on torch's meta device, and a small configuration of each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest


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
        made = transformers.AutoConfig.for_model(config["model_type"], **fields, **_no_padding(config["model_type"]))
        made._attn_implementation = made._experts_implementation = "eager"  # as products that torch counts
        return getattr(transformers, name)(made)

    return make


def _no_padding(kind: str) -> dict[str, Any]:
    """Without a padding token beyond a small vocabulary."""
    return {"pad_token_id": None} if kind == "phi3" else {}


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
    return {**_decoder(source), "intermediate_size": 4 * source.randint(2, 9), "num_local_experts": 4}


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


def _gpt_neox(source: Any) -> dict[str, Any]:
    return {**_decoder(source), "tie_word_embeddings": source.random() < 0.5}


def _bert(source: Any) -> dict[str, Any]:
    return {**_decoder(source), "type_vocab_size": source.randint(1, 3)}


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


def _captions(config: Mapping[str, Any], _tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    text, side = config["text_config"]["max_position_embeddings"], config["vision_config"]["image_size"]
    return (), {"input_ids": torch.zeros(1, text, dtype=torch.long), "pixel_values": torch.zeros(1, 3, side, side)}


def _images(config: Mapping[str, Any], _tokens: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    return (torch.zeros(1, 3, config["image_size"], config["image_size"]),), {}


LIBRARIES: Mapping[str, Library] = {
    "llama": Library("transformers", _transformers("LlamaForCausalLM"), _decoder, _words),
    "mistral": Library("transformers", _transformers("MistralForCausalLM"), _decoder, _words),
    "mixtral": Library("transformers", _transformers("MixtralForCausalLM"), _experts, _words),
    "qwen2": Library("transformers", _transformers("Qwen2ForCausalLM"), _decoder, _words),
    "qwen3": Library("transformers", _transformers("Qwen3ForCausalLM"), _decoder, _words),
    "phi3": Library("transformers", _transformers("Phi3ForCausalLM"), _decoder, _words),
    "gemma2": Library("transformers", _transformers("Gemma2ForCausalLM"), _decoder, _words),
    "gpt2": Library("transformers", _transformers("GPT2LMHeadModel"), _gpt2, _words),
    "mpt": Library("transformers", _transformers("MptForCausalLM"), _mpt, _words),
    "gpt_neox": Library("transformers", _transformers("GPTNeoXForCausalLM"), _gpt_neox, _words),
    "bert": Library("transformers", _transformers("BertForPreTraining"), _bert, _words),
    "t5": Library("transformers", _transformers("T5ForConditionalGeneration"), _t5, _pairs),
    "clip": Library("transformers", _transformers("CLIPModel"), _clip, _captions),
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
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(*positional, **keywords)
    counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    inside = sum(count for name, count in counts.items() if "bmm" in name)
    return sum(counts.values()) - inside, inside


def kept_by(config: Mapping[str, Any], tokens: int) -> float:
    """Elements of half precision that the library's forward keeps until backward, parameters apart."""
    model = library_of(config, "cpu")
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
