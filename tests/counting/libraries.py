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
}
"""By ``model_type``."""


def library_of(config: Mapping[str, Any]) -> Any:
    """The library's own model of a configuration, without memory. Skips the test without the library."""
    torch = pytest.importorskip("torch")
    library = LIBRARIES[config["model_type"]]
    pytest.importorskip(library.package, reason=f"{library.package} is not installed")
    with torch.device("meta"):
        return library.make(config)


def operations_of(model: Any, config: Mapping[str, Any], tokens: int) -> tuple[int, int]:
    """Operations of a forward for one sample: of products with parameters, and inside attention."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    positional, keywords = LIBRARIES[config["model_type"]].inputs(config, tokens)
    model = model.to_empty(device="cpu").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*positional, **keywords)
    counts = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    inside = sum(count for name, count in counts.items() if "attention" in name or "bmm" in name)
    return sum(counts.values()) - inside, inside
