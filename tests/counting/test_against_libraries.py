"""Counted models against the library's own class on the meta device: every tensor by name and shape."""

from __future__ import annotations

import json
import random
from math import prod

import pytest

from osfmodel.counting.config import Config
from osfmodel.counting.families import MODEL_FAMILIES
from osfmodel.counting.words import model_of, parse_words
from tests.conftest import ROOT
from tests.counting.libraries import GENERAL, LIBRARIES, general_operations, kept_by, library_of, operations_of

pytestmark = pytest.mark.live
ARCHITECTURES = [path for path in sorted((ROOT / "profiles/architectures").glob("*.json")) if path.stem != "dlrm"]
SEED = 20
SOLVED = {"qwen3_next": (4, 8 + 8), "olmo_hybrid": (4, 12 + 6)}
"""Of the gated delta rule: heads, and the widths of values and keys."""


def shapes(model):
    """{name of a tensor: its shape} of a counted model."""
    return {
        ".".join(filter(None, (module.name, parameter))): shape
        for module in model.modules
        for parameter, shape in module.parameters
    }


def theirs(config, ours):
    """{name of a tensor: its shape} of the library's class; of the names of a tied tensor the one in ``ours``."""
    names = {}
    for name, tensor in library_of(config).named_parameters(remove_duplicate=False):
        if tensor not in names or name in ours:
            names[tensor] = name
    return {name: tuple(tensor.shape) for tensor, name in names.items()}


@pytest.mark.parametrize("path", ARCHITECTURES, ids=lambda path: path.stem)
def test_every_bundled_architecture_has_the_tensors_of_the_library(path):
    model = model_of(parse_words(f"{path.stem}:h100"))
    assert shapes(model) == theirs(json.loads(path.read_text())["config"], shapes(model))
    assert sum(map(prod, shapes(model).values())) == model.parameters  # no name twice


def small(kind):
    """A small configuration of a kind, by a fixed seed."""
    return LIBRARIES[kind].small(random.Random(f"{SEED} {kind}"))


@pytest.mark.parametrize("kind", LIBRARIES)
def test_a_random_small_configuration_has_the_tensors_of_the_library(kind):
    config = {"model_type": kind, **small(kind)}
    ours = shapes(MODEL_FAMILIES[kind].build(Config("small", config), 16))
    assert ours == theirs(config, ours)


@pytest.mark.parametrize("kind", [kind for kind in LIBRARIES if kind != "mamba2"])  # scanned by other products
def test_operations_are_those_that_torch_counts(kind):
    """Of matrix products in forward; where attention is causal we count half of it."""
    config = {"model_type": kind, **small(kind)}
    model = MODEL_FAMILIES[kind].build(Config("small", config), 16)
    ours = sum(product.operations for module in model.modules for product in module.products)
    products, attention = operations_of(config, 16)
    assert model.utilised == 3 * (products + attention)
    assert ours == products or kind.startswith("llama4")  # its experts are products inside attention for torch


@pytest.mark.parametrize(
    "config",
    [
        {
            "model_type": "bert", "hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 4,
            "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 512, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        {
            "model_type": "torchvision-vit", "image_size": 224, "patch_size": 16, "num_layers": 2, "num_heads": 4,
            "hidden_dim": 128, "mlp_dim": 512, "num_classes": 10,
        },
        {"model_type": "torchvision-resnet", "image_size": 224, "layers": [2, 2, 2, 2], "num_classes": 10},
        {
            "model_type": "torchvision-convnext", "image_size": 224, "widths": [32, 64, 128, 256],
            "depths": [1, 1, 2, 1], "num_classes": 10,
        },
        {
            "model_type": "torchvision-swin", "image_size": 224, "embed_dim": 32, "depths": [2, 2],
            "num_heads": [1, 2], "window_size": 7, "num_classes": 10,
        },
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_about_as_much_is_kept_until_backward_as_autograd_keeps(config):
    """Decoders of transformers keep more, since their norms and activations are many small operations."""
    model = MODEL_FAMILIES[config["model_type"]].build(Config("small", config), 512)
    assert sum(module.kept for module in model.modules) == pytest.approx(kept_by(config, 512), rel=0.06)


def test_all_kinds_but_one_are_compared():
    assert set(MODEL_FAMILIES) - set(LIBRARIES) == {"dlrm"}


@pytest.mark.parametrize("kind", GENERAL)
def test_operations_of_the_general_path_are_those_that_torch_counts(kind, monkeypatch):
    """Of a real instance on the CPU. It computes all of causal attention, and solves triangular systems uncounted."""
    pytest.importorskip("transformers")
    from osfmodel.counting.library import hugging_face
    from osfmodel.counting.library.counter import Counter

    plain = Counter.attend
    monkeypatch.setattr(Counter, "attend", lambda self, output, tensors, *_: plain(self, output, tensors, False))
    config = {"model_type": kind, **GENERAL[kind]}
    model = hugging_face.count(Config("small", config), 64)
    ours = sum(one.operations for module in model.modules for one in (*module.products, *module.scores))
    real = general_operations(config, 64)
    if kind in SOLVED:  # in one chunk of 64 tokens, for the heads of three layers, values and keys
        heads, width = SOLVED[kind]
        real += 3 * heads * 2 * 64 * 64 * width
    assert ours == real


def test_causal_attention_is_counted_by_halves(monkeypatch):
    pytest.importorskip("transformers")
    from osfmodel.counting.library import hugging_face

    config = Config("small", {"model_type": "qwen3_next", **GENERAL["qwen3_next"]})
    attending = next(one for one in hugging_face.count(config, 64).modules if one.keys)
    heads, width, tokens = 4, 8, 64
    assert sum(one.operations for one in attending.scores) == 2 * 2 * heads * width * tokens * tokens // 2


def test_a_class_without_kernels_of_attention_gets_a_note():
    pytest.importorskip("transformers")
    from osfmodel.counting.library import hugging_face

    for kind, noted in (("bloom", True), ("qwen3_next", False)):
        small = GENERAL.get(kind, {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64})
        notes = hugging_face.count(Config("small", {"model_type": kind, **small}), 16).notes
        assert any("counted whole" in one for one in notes) == noted


def test_what_an_own_family_does_not_count_its_class_does(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shared = {"num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 64}
    stable = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 4}
    opt = {"hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 4, "word_embed_proj_dim": 16}
    for kind, fields, part in (
        ("stablelm", {**stable, "qk_layernorm": True}, "q_layernorm"),
        ("opt", {**opt, "do_layer_norm_before": False}, "project_in"),
    ):
        path = tmp_path / f"{kind}.json"
        path.write_text(json.dumps({"model_type": kind, **shared, **fields}))
        assert any(part in one.name for one in model_of(parse_words(f"{path}:h100,seq16")).modules)
