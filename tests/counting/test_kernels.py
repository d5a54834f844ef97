"""The surface of kernels: its law and table by hand, and the bundled ones against data sheets."""

from __future__ import annotations

import json
import math
import sys
from itertools import product

import numpy as np
import pytest

import osfmodel as osf
from osfmodel.counting.kernels import Residuals, kernels_in, kernels_of, measured, most_like, unfilled
from osfmodel.entities.errors import DataError
from osfmodel.entities.gpus import GPUS
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "profiles"))
import make_kernels as making


def test_a_table_is_linear_in_logarithms_between_nodes_and_flat_beyond():
    table = Residuals(((1.0, 4.0), (10.0, 1000.0)), (0, 100, 200, 400))
    for (row, size), (column, width) in product(enumerate((1, 4)), enumerate((10, 1000))):
        assert table.at(size, width) == pytest.approx((0, 1, 2, 4)[2 * row + column])
    assert table.at(2, 100) == pytest.approx((0 + 1 + 2 + 4) / 4)
    assert table.at(0.1, 10) == table.at(1, 10)
    assert table.at(100, 10**6) == 4


@pytest.mark.parametrize("gpu", ["h100", "a100"])
def test_times_are_those_that_were_fitted(gpu):
    """The script fits the sum that predictions take: the same weights of nodes and waves, on drawn shapes."""
    kernels = kernels_of(gpu)
    own = kernels.products["bfloat16"]
    drawn = np.random.default_rng(7).integers(128, 30_000, (40, 3)).astype(float)
    law = np.array([kernels.law(2 * m * n * k, 2 * (m * k + k * n + m * n), "bfloat16") for m, n, k in drawn])
    waves = np.array([unfilled(m, n, kernels.multiprocessors) for m, n, _ in drawn])
    shapes = making.Shapes(own.table.nodes, tuple(drawn.T), waves, law, law)
    fitted = np.exp(making.weights(shapes) @ np.array([*(one / 100 for one in own.table.values), *own.waves]))
    for (m, n, k), factor, least in zip(drawn, fitted, law, strict=True):
        assert kernels.product(m, k, n, "bfloat16") == pytest.approx(least * factor)


def test_waves_that_are_full_cost_nothing():
    assert unfilled(128 * 132, 256, 132)[0] == pytest.approx(0)
    assert unfilled(128 * 132 + 1, 256, 132)[0] == pytest.approx(math.log(2), rel=1e-3)


@pytest.mark.parametrize("gpu", measured())
def test_bundled_products_are_below_the_data_sheet_and_grow_with_their_size(gpu):
    kernels = kernels_of(gpu)
    for dtype in kernels.products:
        times = [kernels.product(2048, 4096, size, dtype) for size in (1024, 2048, 4096, 8192, 16384)]
        assert times == sorted(times)
        large = 2 * 8192**3 / kernels.product(8192, 8192, 8192, dtype) / GPUS[gpu].rate(dtype)
        assert 0.3 < large < 1
        for rows in (1, 8, 32, 64, 100, 128, 300, 32768, 32769, 10**5):
            assert kernels.product(rows, 4096, 4096, dtype) <= 1.35 * kernels.product(2 * rows, 4096, 4096, dtype)


def test_more_rows_take_no_less_time_at_the_edges_of_the_table():
    """A table is clipped where it ends: neither its orientation nor its waves may jump there."""
    for gpu in measured():
        for columns in (16, 64, 4096):
            few, edge, more = (kernels_of(gpu).product(rows, 4096, columns, "bfloat16") for rows in (1, 128, 256))
            assert few <= edge <= 1.3 * more
            at, beyond = (kernels_of(gpu).product(rows, 4096, columns, "bfloat16") for rows in (32768, 32769))
            assert beyond == pytest.approx(at, rel=0.05)


def test_no_product_is_faster_than_the_data_sheet():
    for gpu, dtype in (("v100", "float32"), ("p100", "float16"), ("h20", "bfloat16"), ("h100", "float32")):
        for size in (64, 512, 4096, 16384):
            assert kernels_of(gpu).product(size, size, size, dtype) >= 2 * size**3 / GPUS[gpu].rate(dtype)


def test_a_gpu_without_a_table_takes_that_of_its_generation():
    assert {name: most_like(GPUS[name]) for name in ("a100-40gb", "h800", "gb300", "rtx4090", "rtx5090")} == {
        "a100-40gb": "a100", "h800": "h100", "gb300": "gb300", "rtx4090": "l40s", "rtx5090": "rtx-pro-6000",
    }  # fmt: skip
    large, small = (kernels_of(name).product(8192, 8192, 8192, "bfloat16") for name in ("a30", "a100"))
    assert large == pytest.approx(small * 312 / 165, rel=0.05)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "mine.json"
    said = json.loads((ROOT / "profiles/kernels/a100.json").read_text())
    said["attention"]["bfloat16"]["values"].pop()
    path.write_text(json.dumps(said))
    with pytest.raises(DataError, match=r"mine\.json: is no table of kernels"):
        kernels_in(path)


def test_the_tables_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "profiles/kernels").iterdir()) < 300_000


@pytest.mark.parametrize("gpu", [name for name in measured() if "float8" in kernels_of(name).products])
def test_products_in_float8_are_without_the_cast_of_their_input(gpu):
    """They gain most of the twofold rate, where rows are many and columns few too: a cast would take all of it."""
    for rows, inner, columns in ((8192, 4096, 28672), (8192, 14336, 4096), (32768, 4096, 1024)):
        wide, narrow = (kernels_of(gpu).product(rows, inner, columns, dtype) for dtype in ("bfloat16", "float8"))
        assert 1.4 < wide / narrow < 2.4


def test_experts_take_no_longer_than_their_products_one_after_the_other():
    """A kernel of grouped products that was measured slow is no reason to share experts between GPUs."""
    cluster = osf.load_cluster("nccl:h100x8,400Gbps")
    words = "mixtral-8x7b:h100,seq4096,batch1,bf16"
    times = [osf.replica_workload(words, cluster, osf.Parallelism(expert=size)).forward_time for size in (4, 8)]
    assert times[0] == pytest.approx(times[1], rel=0.05)
