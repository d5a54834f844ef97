"""Several anchors: made-up machines are found again, as far as their steps tell factors apart."""

from __future__ import annotations

import json

import pytest

import osfmodel as osf
from osfmodel.cli.scaling import parse_anchor, runs_in
from osfmodel.cost.model import layout_of
from osfmodel.cost.nccl import ways
from osfmodel.planning.scaling.anchors import DOUBTS, NONE, AnchoredStep, learn, with_factors
from tests.commands import invoke

WORDS = "llama3-8b+num_hidden_layers=2:h100,seq8192,batch1,bf16"
CLUSTER = "nccl:h100x8,400Gbps"


def machine(compute, sent, steps):
    """(factors) -> seconds with so many GPUs: computation, what is sent, and steps that follow each other."""

    def made(workers):
        def timed(factors):
            first, bandwidth, pace, between = factors
            inside = workers <= 8
            network = 0 if inside else sent / bandwidth + steps * pace * workers
            return compute * first * (1 if inside else between) + network

        return timed

    return made


def taught(truth, counts, made=None):
    made = made or machine(1.0, 0.3, 1e-3)
    return learn([AnchoredStep(count, made(count)(truth), made(count)) for count in counts])


def test_one_node_and_many_tell_all_apart():
    truth = (1.2, 0.7, 2.0, 1.0)
    found = taught(truth, (8, 16, 64, 256, 1024))
    assert found.factors[0] == pytest.approx(1.2, rel=0.02)
    assert found.factors[1] == pytest.approx(0.7, rel=0.15)
    assert found.factors[2] == pytest.approx(2.0, rel=0.1)
    assert [workers for workers, _ in found.held] == [8, 16, 64, 256, 1024]
    assert all(abs(miss) < 0.01 for workers, miss in found.held if workers > 8)
    assert not found.contradictions


def test_a_hidden_network_is_not_learned():
    """Steps that the network never lengthens: its factors and their doubts stay as they were."""
    found = taught((0.9, 3.0, 3.0, 1.0), (8, 64), lambda workers: lambda factors: factors[0])
    assert found.factors == pytest.approx((0.9, 1.0, 1.0, 1.0), rel=1e-3)
    assert found.spreads[1:3] == pytest.approx(DOUBTS[1:3])
    assert "bandwidth x1 (-39% +64%, hardly shown)" in found.words


def test_more_anchors_leave_less_doubt():
    truth = (1.0, 0.8, 1.5, 1.0)
    two, four = taught(truth, (8, 64)), taught(truth, (8, 64, 128, 512))
    assert all(after <= before + 1e-9 for before, after in zip(two.spreads, four.spreads, strict=True))
    assert four.spreads[2] < two.spreads[2] / 2


def test_anchors_that_contradict_each_other_are_named():
    made = machine(1.0, 0.3, 1e-3)
    anchors = [AnchoredStep(8, 1.0, made(8)), AnchoredStep(8, 1.5, made(8)), AnchoredStep(64, 1.4, made(64))]
    first, second = learn(anchors).contradictions
    assert "of 8 GPUs contradicts the others" in first
    assert "off" in second
    with pytest.raises(osf.UsageError, match="nothing explains it beside the other anchors"):
        learn([AnchoredStep(8, 1.0, made(8)), AnchoredStep(8, 30.0, made(8))])


def test_a_network_unlike_any_published_is_doubted():
    found = taught((1.0, 0.8, 40.0, 1.0), (8, 16, 64))
    assert "unlike published ones (pace x" in found.contradictions[0]


def test_factors_change_the_network_alone():
    cluster = osf.load_cluster(CLUSTER)
    same, faster = with_factors(cluster, NONE), with_factors(cluster, (9.0, 2.0, 0.5, 9.0))
    assert faster.nccl.nic_bandwidth == 2 * same.nccl.nic_bandwidth == 2 * cluster.nccl.nic_bandwidth
    steps = [ways(one.nccl, layout_of(64, 8), "all_gather")["ring", "Simple"].latency for one in (same, faster)]
    assert steps[1] == pytest.approx(steps[0] / 2)


def scaled(*options):
    asked = ["scale", WORDS, "--cluster", CLUSTER, "--plan", "fsdp2", "--json", *options]
    done = invoke(asked)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("counts", [("8", "64"), ("8", "64", "256")])
def test_steps_that_were_predicted_teach_that_nothing_is_to_learn(counts):
    """Anchors that agree with the machine: factors near 1, bands at anchors as narrow as measurements."""
    pace = osf.load_cluster(CLUSTER)
    base = osf.scale(
        osf.load_workload(WORDS), with_factors(pace, NONE), [8, 64, 256], osf.ScaleOptions(plans=("fsdp2",))
    )
    steps = {str(point.workers): point.time for point in base.points}
    found = scaled("--workers", "8,64,256", *(x for n in counts for x in ("--anchor", f"{n}={steps[n] * 1e3:.3f}ms")))
    learned = found["learned"]
    assert learned["computation_factor"] == pytest.approx(1, rel=0.01)
    assert learned["bandwidth_factor"] == pytest.approx(1, rel=0.02)
    for point in found["points"]:
        assert point["step_time_s"] == pytest.approx(steps[str(point["workers"])], rel=0.02)
        if point["workers"] == 8:
            assert point["error_band"]["high_s"] < point["step_time_s"] * 1.03
    assert len(learned["predicted_from_others"]) == (3 if len(counts) == 3 else 0)


def test_anchors_come_from_words_logs_and_tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.log").write_text("elapsed time per iteration (ms): 900 |\n" * 3)
    assert parse_anchor("64=m.log,accumulate=4") == osf.Anchor(64, 0.9, "s", 4)
    assert parse_anchor("64=0.9s, accumulate=4,batch=2") == osf.Anchor(64, 0.9, "s", 4, 2)
    (tmp_path / "runs.csv").write_text("gpus,step_s,accumulate\n8,1.0,\n64,2.1,2\n")
    assert runs_in(tmp_path / "runs.csv") == (osf.Anchor(8, 1.0), osf.Anchor(64, 2.1, "s", 2))
    for text, said in (("gpus,ms\n8,9\n", "has no column step_s"), ("gpus,step_s\n0,1\n", "has no GPUs")):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(osf.DataError, match=said):
            runs_in(tmp_path / "bad.csv")
    found = scaled("--workers", "8", "--anchor", "runs.csv")
    assert [one["workers"] for one in found["learned"]["anchors"]] == [8, 64]
