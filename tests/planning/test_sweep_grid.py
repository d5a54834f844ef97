"""Grids: their points, and mistakes that are told before anything is predicted."""

from __future__ import annotations

from itertools import product

import pytest
import yaml

from osfmodel.entities.errors import OsfError
from osfmodel.planning.sweep.grid import load_grid

SMALL = {"workloads": "resnet50-v100", "clusters": "v100-10gbe", "workers": [2, 4]}


def points(grid):
    return [point for batch in grid.batches() for _, point in batch.points]


def test_points_are_the_product_of_all_lists_in_their_order():
    given = {
        "workloads": ["resnet50-v100", "vgg16-pipedream"],
        "clusters": ["v100-10gbe", "ring:50us,10Gbps"],
        "workers": [8, "2,4"],
        "plans": ["ddp", "wfbp"],
        "accumulate": [1, 2],
        "prices": [1, 2.5],
    }
    grid = load_grid(given)
    names = ("workload", "cluster", "accumulate", "workers", "plan", "price")
    found = [tuple(point[name] for name in names) for point in points(grid)]
    assert found == list(product(given["workloads"], given["clusters"], (1, 2), (8, 2, 4), given["plans"], (1.0, 2.5)))
    assert len(grid) == len(found)


def test_a_range_holds_the_counts_that_each_cluster_was_measured_with():
    grid = load_grid(SMALL | {"clusters": ["azure-a100-hdr", "ring:50us,10Gbps"], "workers": "2..64"})
    counts = {name: [point["workers"] for point in points(grid) if point["cluster"] == name] for name in grid.counts}
    assert counts["ring:50us,10Gbps"] == [2, 4, 8, 16, 32, 64]
    assert set(counts["azure-a100-hdr"]) < set(range(2, 65))
    assert "measured with" in grid.remarks[0]


def test_a_counted_workload_is_on_the_gpu_of_each_cluster_once():
    words = [f"llama3-8b:{gpu},seq4096,batch1,bf16" for gpu in ("h100", "a100")]
    grid = load_grid({"workloads": words, "clusters": ["nccl:h100x8,400Gbps", "nccl:a100x8,200Gbps"], "workers": 8})
    found = [(point["workload"], point["cluster"]) for point in points(grid)]
    assert sorted(found) == sorted([(words[0], "nccl:h100x8,400Gbps"), (words[1], "nccl:a100x8,200Gbps")])


def test_keys_of_points_do_not_depend_on_the_grid_but_on_the_files(tmp_path):
    few, more = load_grid(SMALL), load_grid(SMALL | {"workers": [2, 4, 8], "plans": ["ddp", "wfbp"]})
    keys = {key for batch in more.batches() for key, _ in batch.points}
    own = [key for batch in few.batches() for key, _ in batch.points]
    assert keys.issuperset(own)
    assert len(keys) == 6
    assert all(0 <= key < 2**63 for key in keys)
    cheap = load_grid(SMALL | {"memory": "16GB"})
    assert not keys & {key for batch in cheap.batches() for key, _ in batch.points}


def test_points_that_are_done_are_left_out():
    grid = load_grid(SMALL | {"plans": ["ddp", "wfbp"]})
    keys = [key for batch in grid.batches() for key, _ in batch.points]
    left = [key for batch in grid.batches({keys[0], keys[3]}.__contains__) for key, _ in batch.points]
    assert left == [keys[1], keys[2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "resnet50-v100"}, "unknown key in grid: 'workload': did you mean workloads?"),
        ({"clusters": "v100-10gb"}, "grid: clusters: .*v100-10gbe"),
        ({"workloads": "resnet51-v100"}, "grid: workloads: .*resnet50"),
        ({"plans": ["ddp", "dpp"]}, "grid: plans: unknown plan 'dpp'"),
        ({"workers": []}, "grid: workers is an empty list"),
        ({"workers": "8..2"}, "grid: workers: workers '8..2'"),
        ({"workers": 0}, "write counts from 1"),
        ({"workers": 2.5}, "write counts such as"),
        ({"batch_sizes": 0}, "grid: batch_sizes: 0: give a whole number from 1 on"),
        ({"batch_sizes": True}, "give a whole number"),
        ({"batch_sizes": 8, "global_batches": 64}, "contradict"),
        ({"effects": "hook-tim=20us"}, "grid: effects: .*hook"),
        ({"prices": -1}, "grid: prices: -1"),
        ({"compute": "2"}, "grid: compute"),
        ({"bandwidth": "fast"}, "grid: bandwidth"),
        ({"compression": "fp8"}, "grid: compression"),
        ({"optimizer": "adamw"}, "optimizer goes with memory"),
        ({"memory": "a lot"}, "grid: memory"),
        ({"tokens": "1T"}, "does not say how many tokens"),
        ({"tokens": "1T", "samples": "1M"}, "give one of them"),
        ({"clusters": "azure-a100-hdr", "workers": [3, 5]}, "grid: clusters: .*(3|workers)"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(change, message):
    with pytest.raises(OsfError, match=message) as raised:
        load_grid(SMALL | change)
    assert "\n" not in str(raised.value)


def test_a_cluster_that_prices_only_some_counts_is_a_remark():
    grid = load_grid(SMALL | {"clusters": "azure-a100-hdr", "workers": [32, 17]})
    assert len(grid) == 2
    assert "no prices at 1 worker count (17)" in grid.remarks[0]


def test_too_many_points_are_refused_at_once():
    many = SMALL | {"workers": list(range(1, 1001)), "batch_sizes": list(range(1, 1001))}
    with pytest.raises(OsfError, match=r"1,000,000,000 points or more: a sweep has at most 10,000,000"):
        load_grid(many | {"accumulate": list(range(1, 1001))})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workloads: [a\n", r"grid.yaml: line 2, column 1: this is not YAML"),
        ("- a\n", "a grid has keys such as workloads"),
        ("workloads: resnet50-v100\n", "clusters, workers missing"),
        ("", "a grid has keys"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, text, message):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(OsfError, match=message):
        load_grid(path)


def test_a_file_is_read_as_its_mapping(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    assert points(load_grid(path)) == points(load_grid(SMALL))
