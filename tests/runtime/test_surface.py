"""Measuring kernels on a device that is made up: what there is time for, and a file that says what was measured."""

from __future__ import annotations

import json
import math
from itertools import product
from types import SimpleNamespace

import pytest

from osfmodel.counting.kernels import attention_work, kernels_in, product_work
from osfmodel.runtime.bench import surface
from osfmodel.runtime.bench.surface import ATTENDED, SIZES, USUAL, document, kernels_to_measure

RATES, BANDWIDTH, LAUNCH = {"bfloat16": 1e14, "float32": 1e13}, 1e12, 2e-6


class MadeUpDevice:
    """A device on which a kernel takes its law, 1.5 times as long in backward; a clock that goes on meanwhile."""

    gpu, memory, multiprocessors = False, 10**12, 4
    device = SimpleNamespace(type="cpu")

    def __init__(self):
        self.now = 0.0

    def types(self):
        return list(RATES)

    def product(self, dtype, operand, rows, inner, columns):
        return self._call(dtype, operand, product_work(rows, inner, columns, dtype))

    def attention(self, dtype, operand, sizes):
        tokens, heads, width, seen, sharing = sizes
        if sharing > 1:
            raise RuntimeError("no heads that share keys")
        return self._call(dtype, operand, attention_work(tokens, heads, width, tokens * seen, dtype))

    def _call(self, dtype, operand, work):
        taken = (work[0] / RATES[dtype] + work[1] / BANDWIDTH + LAUNCH) * 1.5 ** (operand > 0)

        def call():
            self.now += taken
            return taken

        return call

    def seconds(self, call, calls, _kind):
        return sum(call() for _ in range(calls)) / calls


@pytest.fixture
def device(monkeypatch):
    made = MadeUpDevice()
    monkeypatch.setattr(surface, "MeasuredDevice", lambda: made)
    monkeypatch.setattr(surface, "machine", lambda _: "made up, torch 0")
    monkeypatch.setattr(surface.time, "monotonic", lambda: made.now)
    made.launches, made.bandwidth = lambda: (LAUNCH, 5e-6), lambda: BANDWIDTH
    return made


def measured(seconds, tmp_path):
    """The kernels of a file that was measured so long, what it says, and the doubts."""
    doubts = []
    said = surface.measured_surface(seconds, lambda _: None, doubts.append)
    path = tmp_path / "made-up.json"
    path.write_text(json.dumps(said))
    return kernels_in(path), said, doubts


def test_what_was_measured_is_what_the_file_says(device, tmp_path):
    kernels, said, doubts = measured(100_000, tmp_path)
    assert doubts == []
    assert said["source"].startswith("osf bench --kernels on 2")
    # The peak is the best that was measured, which is below the made-up rate by a launch and what is moved.
    assert 0.9 * RATES["bfloat16"] < kernels.gpu.rate("bfloat16") < RATES["bfloat16"]
    for dtype, (rows, columns, inner), operand in product(RATES, product(*SIZES), range(3)):
        taken = device.product(dtype, operand, rows, inner, columns)()
        assert kernels.product(rows, inner, columns, dtype, operand) == pytest.approx(taken, rel=1e-3)
    for dtype, sizes in product(RATES, product(*ATTENDED)):
        tokens, heads, width, seen, _ = sizes
        law = kernels.law(*attention_work(tokens, heads, width, tokens * seen, dtype), dtype)
        table, alone = kernels.attending(dtype), device.attention(dtype, 0, (*sizes[:4], 1))()
        assert law * math.exp(table.at(sizes)) == pytest.approx(alone, rel=1e-3)  # sharing heads as others
        assert table.again(sizes, math.nan) == pytest.approx(1.5, rel=1e-3)


def test_a_short_time_measures_small_sizes_and_ends(device, tmp_path):
    kernels, said, _ = measured(0.5, tmp_path)
    assert 0.5 < device.now < 0.6
    small, usual = (64, 64, 64), tuple(SIZES[0][index] for index in USUAL["products"])
    for rows, inner, columns in (small, usual):
        taken = device.product("float32", 2, rows, inner, columns)()
        assert kernels.product(rows, inner, columns, "float32", 2) == pytest.approx(taken, rel=1e-3)
    large = device.product("float32", 0, 16384, 16384, 16384)()  # not measured: as much above the law as a smaller one
    assert kernels.product(16384, 16384, 16384, "float32") == pytest.approx(large, rel=0.2)
    assert len(list(kernels_to_measure(device))) > int(said["source"].split(": ")[1].split()[0])


def test_kernels_that_memory_does_not_hold_are_left_out(device):
    everything = {(one.kind, one.place) for one in kernels_to_measure(device)}
    device.memory = 10**9
    left = {(one.kind, one.place) for one in kernels_to_measure(device)}
    assert left < everything
    assert {kind for kind, _ in left} == {kind for kind, _ in everything}
    assert (7, 7, 7) in {place for _, place in everything - left}


def test_without_time_for_rounds_the_file_is_doubted(device, tmp_path):
    assert "give more --seconds" in "".join(measured(1e-3, tmp_path)[2])


def test_a_document_keeps_figures_and_names(device):
    samples = list(kernels_to_measure(device))
    for one in samples:
        if one.place == USUAL[one.kind.kind]:
            one.take(device)
    found = document(device, [one for one in samples if one.seconds], (1e-6, 2e-6, 3e12), "here")
    assert found["gpu"] | {"called": "", "operations_per_s": {}} == {
        "called": "", "device": "cpu", "memory_bytes": 10**12, "bytes_per_s": 3e12, "operations_per_s": {},
        "launch_s": 1e-6, "host_launch_s": 2e-6,
    }  # fmt: skip
    assert found["source"] == "here"
    assert set(found["products"]) == set(found["attention"]) == set(RATES)


def test_rounds_that_time_cut_short_do_not_count(device):
    samples = list(kernels_to_measure(device))[:4]
    assert surface._take_turns(device, samples, -1.0) == 0
