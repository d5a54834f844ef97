"""Lines to paste for compressed gradients: they follow from how gradients are sent, never from the workload's name."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache

import pytest

import osfmodel as osf
from osfmodel.entities import compression
from osfmodel.entities.compression import COMPRESSIONS, Compression, compressed
from osfmodel.entities.errors import DataError
from osfmodel.entities.workload import Layer, Workload

WORKLOAD = Workload("w", (Layer("a", 1.0, 1.0, 4 * 2**20), Layer("b", 1.0, 1.0, 2**20)), update_time=1.0)
CLUSTER = osf.load_cluster("v100-10gbe")
OF_DDP = ("ddp", "accelerate", "lightning")


@cache
def lines(workload: Workload, target: str = "ddp") -> str:
    return osf.tune(workload, CLUSTER, 4, target).rendered


@pytest.mark.covering
@pytest.mark.parametrize("target", [*OF_DDP, "horovod"])
@pytest.mark.parametrize("name", ["bert-fp16", "bert-bf16", "bert-powersgd", "bert-powersgd4"])
def test_a_name_says_nothing_of_how_gradients_are_sent(name, target):
    plain = lines(replace(WORKLOAD, name="bert"), target)
    assert lines(replace(WORKLOAD, name=name), target).replace(name, "bert") == plain
    assert "hook" not in plain
    assert "compression" not in plain


@pytest.mark.parametrize(
    ("how", "sent_as", "hook"),
    [
        ("none", "", ""),
        ("fp16", "fp16", "default_hooks.fp16_compress_hook"),
        ("bf16", "bf16", "default_hooks.bf16_compress_hook"),
        ("powersgd:04", "powersgd:4", "PowerSGDState(None, matrix_approximation_rank=4)"),
    ],
)
def test_the_hook_follows_from_how_gradients_are_sent(how, sent_as, hook, tmp_path):
    smaller = compressed(WORKLOAD, how)
    assert smaller.sent_as == sent_as
    osf.save(smaller, tmp_path / "w.json")
    renamed = replace(osf.load_workload(tmp_path / "w.json"), name="another")
    for target in OF_DDP:
        text = lines(renamed, target)
        ast.parse(text)
        assert hook in text
        assert ("hook" in text) == bool(hook)
    assert ("hvd.Compression.fp16" in lines(renamed, "horovod")) == (how == "fp16")


def test_a_new_compression_is_one_entry(monkeypatch):
    entry = Compression(lambda layer, rank: compression.cast(layer, "int8"), "a quarter", hook="model.quarter()")
    monkeypatch.setitem(COMPRESSIONS, "quarter", entry)
    smaller = compressed(WORKLOAD, "quarter")
    assert (smaller.name, smaller.gradient_bytes) == ("w-quarter", WORKLOAD.gradient_bytes // 4)
    assert "model.quarter()" in lines(smaller)


def test_a_file_that_is_sent_as_nobody_knows_is_bad_data():
    with pytest.raises(DataError, match=r"workload 'w' is sent as 'zip': .* none, fp16, bf16, powersgd:RANK"):
        lines(replace(WORKLOAD, sent_as="zip"))
