"""The parts of a model: each module in one, in sums and beside published figures."""

from __future__ import annotations

import json

import pytest

from osfmodel.counting.remarks import parts_of
from osfmodel.counting.words import model_of, parse_words
from tests.commands import invoke
from tests.conftest import ROOT


@pytest.mark.parametrize("path", sorted((ROOT / "profiles/architectures").glob("*.json")), ids=lambda path: path.stem)
def test_parts_add_up_to_the_model(path):
    model = model_of(parse_words(f"{path.stem}:h100"))
    *parts, whole = parts_of(model)
    for number in ("modules", "parameters", "active", "trained", "operations", "kept"):
        assert sum(getattr(part, number) for part in parts) == getattr(whole, number)
    assert 3 * whole.operations == model.operations
    has_attention = any(module.scores and model.block_of(module) for module in model.modules)
    states = path.stem.startswith("mamba")
    assert ("attention" in {part.name for part in parts}) == (has_attention and not states)
    assert ("state space" in {part.name for part in parts}) == states


@pytest.mark.parametrize("words", ["llama3-8b:h100,frozen=model.layers", "resnet50:h100,lora=16:all-linear"])
def test_frozen_norms_are_no_tables(words):
    """They keep as little as a table does."""
    embeddings = [part.parameters for part in parts_of(model_of(parse_words(words))) if part.name == "embedding"]
    assert embeddings == ([128_256 * 4096] if words.startswith("llama") else [])


def listed(*words):
    result = invoke(["list", "model", *words])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_experts_are_active_as_often_as_they_are_chosen():
    rows = {row["name"]: row for row in json.loads(listed("mixtral-8x7b", "--format", "json"))["model"]}
    experts, router, whole = rows["experts"], rows["router"], rows["all"]
    assert router["active"] == router["parameters"] == 32 * 8 * 4096
    assert experts["active"] == experts["parameters"] // 4
    assert whole["published"] == whole["parameters"] == 46_702_792_704
    assert whole["published_active"] == 12_900_000_000
    assert round(whole["active"] / 1e9, 1) == 12.9
    assert whole["operations_per_token"] == pytest.approx(2 * whole["active"], rel=0.06)  # and attention


def test_fine_tuning_shows_what_trains():
    lines = [line.split(",") for line in listed("llama3-8b:h100,lora=16", "--format", "csv").splitlines()]
    rows = {row[1]: dict(zip(lines[0], row, strict=True)) for row in lines[1:]}
    assert rows["adapters"]["trained"] == rows["all"]["trained"] == "6815744"
    assert rows["attention"]["trained"] == "0"


def test_towers_and_adapters_are_parts_of_their_own():
    assert "vision" in listed("clip-vit-b32")
    assert "adapters" not in listed("clip-vit-b32")


@pytest.mark.parametrize(
    ("words", "heading", "columns"),
    [
        ("gpt2", "gpt2: 124.4M parameters as published; counted for one sample of 1,024 tokens", 5),
        ("mixtral-8x7b:h100,seq512,batch4", "mixtral-8x7b: 46.7B parameters as published, 12.9B active as published; "
         "counted for one sample of 512 tokens, of which a micro-batch has 4", 6),
        ("kimi-k2", "kimi-k2: 1.03T parameters as published, 33.0B active (published: 32.0B); counted for one sample "
         "of 4,096 tokens", 6),
        ("resnet50:v100,lora=8:all-linear", "resnet50: 25.6M parameters as published, 24.4k trained; counted for one "
         "sample", 6),
    ],
)  # fmt: skip
def test_a_heading_says_what_was_counted(words, heading, columns):
    """And columns that would be all the same are left out: parameters that are active, and those that are trained."""
    lines = listed(words).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("part "))
    assert " ".join(lines[:start]) == heading
    assert len(lines[start].replace("saved activations", "saved").split()) == columns
    assert lines[start + 1].startswith("embedding" if "resnet" not in words else "convolution")
    assert lines[-1].startswith("all")
    assert json.loads(listed(words, "--json"))["counted"]["tokens"] == (None if "resnet" in words else
        int(words.partition("seq")[2][:3] or (1024 if words == "gpt2" else 4096)))  # fmt: skip


def test_a_model_must_be_named():
    result = invoke(["list", "model"])
    assert result.exit_code == 2
    assert "give a name of 'osf list architectures'" in result.stderr
