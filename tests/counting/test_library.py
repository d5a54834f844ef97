"""Models that no own family counts: where their configurations are found, what is kept, and what is said without."""

from __future__ import annotations

import json
import os

import pytest

import osfmodel as osf
from osfmodel.counting import library
from osfmodel.counting.config import Config
from osfmodel.counting.library import hugging_face
from osfmodel.counting.library.counted import one_line
from osfmodel.counting.modules import Model, Module, Product
from osfmodel.counting.words import configuration, model_of, parse_words
from tests.counting.test_words import TINY

MAMBA = {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 2}
COUNTED = Model(
    "config",
    (
        Module("a", (("weight", (3, 4)), ("bias", (3,))), (Product(2, 4, 3),), (Product(2, 2, 2, 5),), 7, 8, keys=9),
        Module("b", (("", (5,)),), experts=4, row_parallel=True),
    ),
    tokens=2,
    blocks=("a",),
    causal=True,
)


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Folders for caches, in which nothing is."""
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def in_hub(folder, name, fields, snapshot="abc"):
    """Write a configuration as Hugging Face's libraries keep one; the folder of its model."""
    model = folder / f"models--{name.replace('/', '--')}"
    path = model / "snapshots" / snapshot / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(fields))
    return model


@pytest.mark.parametrize(
    ("variable", "inside"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_a_name_on_the_hub_is_found_in_the_local_cache(tmp_path, monkeypatch, variable, inside):
    monkeypatch.setenv(variable, str(tmp_path))
    for name in ("some-one/Tiny-1.5", "tiny"):
        in_hub(tmp_path / inside, name, TINY)
        assert configuration(name) == Config(name.rpartition("/")[2], TINY)
        assert model_of(parse_words(f"{name}:h100,seq16")).tokens == 16


def test_the_snapshot_of_main_counts_or_else_the_newest(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for number, snapshot in enumerate(("new", "old")):
        model = in_hub(tmp_path, "one/tiny", {**TINY, "vocab_size": 100 + number}, snapshot)
        os.utime(model / "snapshots" / snapshot / "config.json", (0, 1000 - number))
    assert configuration("one/tiny").fields["vocab_size"] == 100
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("old")
    assert configuration("one/tiny").fields["vocab_size"] == 101


def test_a_name_that_is_not_in_the_cache_gets_the_command_that_loads_it():
    with pytest.raises(osf.UsageError, match=r"huggingface-cli download one/other config\.json") as error:
        osf.load_workload("one/other:h100")
    assert "\n" not in str(error.value)
    for name in ("one/two/other", "./other", "other"):
        with pytest.raises(osf.UsageError, match="no architecture named") as error:
            osf.load_workload(f"{name}:h100")
        assert "huggingface-cli" not in str(error.value)


@pytest.mark.parametrize("model", ["FILE", "nowhere.at_all:model"])
def test_without_the_extra_the_error_says_how_to_install_it(tmp_path, monkeypatch, model):
    from importlib.metadata import PackageNotFoundError

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MAMBA))
    with pytest.raises(osf.UsageError, match=r"pip install 'osfmodel\[names\]'") as error:
        model_of(parse_words(f"{model.replace('FILE', str(path))}:h100"))
    assert "torch" in str(error.value)
    assert "\n" not in str(error.value)


def test_too_many_layers_are_refused_before_they_are_made(tmp_path):
    with pytest.raises(osf.DataError, match="'num_hidden_layers' is 1000000000"):
        library.build(Config("deep", {**MAMBA, "num_hidden_layers": 10**9}), 16)


def test_a_model_is_counted_once_and_anew_where_its_file_is_damaged(monkeypatch, caches):
    asked = []

    def count(config, tokens):
        asked.append((dict(config.fields), tokens))
        return COUNTED

    monkeypatch.setattr(hugging_face, "count", count)
    monkeypatch.setattr(library, "_versions", lambda *_: ["1"])
    config = Config("config", MAMBA)
    assert [library.build(config, 16) for _ in range(2)] == [COUNTED] * 2
    assert asked == [(MAMBA, 16)]
    (path,) = caches.rglob("*.json")
    content = path.read_bytes()
    for damaged in (b"", content[:-5], b"[]", content.replace(b"[3,4]", b'[3,"4"]')):
        path.write_bytes(damaged)
        assert library.build(config, 16) == COUNTED
        assert path.read_bytes() == content
    assert len(asked) == 5
    library.build(config, 32)
    library.build(Config("config", {**MAMBA, "hidden_size": 16}), 16)
    monkeypatch.setattr(library, "_versions", lambda *_: ["2"])
    library.build(config, 16)
    assert len(asked) == 8
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file: nothing can be kept in it
    assert library.build(config, 16) == COUNTED


def test_images_have_no_sequence(monkeypatch):
    monkeypatch.setattr(hugging_face, "count", lambda *_: Model("image", COUNTED.modules, 0, ()))
    monkeypatch.setattr(library, "_versions", lambda *_: ["1"])
    with pytest.raises(osf.UsageError, match="vit has no sequence: leave seq16 out"):
        library.build(Config("vit", {"model_type": "vit"}), 16)
    assert library.build(Config("vit", {"model_type": "vit"}), 0).tokens == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ImportError("\nA requires the natten library but it was not found.\nB"), "package: pip install natten"),
        (ImportError("TimmBackbone requires the timm library but"), "package: pip install timm torchvision"),
        (ValueError("one\n two"), "ValueError: one two"),
    ],
)
def test_a_package_that_a_class_needs_is_said_with_its_command(error, said):
    assert one_line(error).endswith(said)
