"""Offload in words: bytes over rates, what computation hides, what leaves a GPU's memory, and what settings say."""

import json

import pytest

import osfmodel as osf
from osfmodel.counting.kernels import gpu_of
from osfmodel.counting.roofline import Roofline, timed
from osfmodel.counting.training import CPU_ADAM, activations, activations_away
from osfmodel.counting.words import model_of, parse_words
from osfmodel.engine.optimizers import shard_update_time
from osfmodel.engine.strategies.holdings import STATE, WEIGHTS
from osfmodel.entities.errors import UsageError
from osfmodel.entities.gpus import GPUS
from osfmodel.entities.savings import Offload
from osfmodel.entities.workload import Layer, Workload
from osfmodel.planning.predictions import PricedSubject
from osfmodel.solve.verdicts import peak_of
from tests.commands import invoke

RANKS = 8
CLUSTER = "nccl:h100x8,400Gbps"
WORDS = "gpt2:h100,seq1024,batch4,bf16"


def offloaded(*kinds, words=WORDS):
    return osf.load_workload(f"{words},offload={'+'.join(kinds)}")


@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        ("offload=optimizer", ("optimizer",)),
        ("offload=activations", ("activations",)),
        ("offload=activations+optimizer", ("optimizer", "activations")),
    ],
)
def test_words_name_what_the_host_has(part, kinds):
    assert parse_words(f"{WORDS},{part}").setting.offload == kinds
    found = osf.load_workload(f"{WORDS},{part}")
    assert found.offload.kinds == kinds
    assert found.offload.words == f"offload={'+'.join(kinds)}"


@pytest.mark.parametrize(
    "part", ["offload=", "offload=weights", "offload=optimizer+optimizer", "offload=optimizer,offload=activations"]
)
def test_other_words_are_refused_with_a_remedy(part):
    with pytest.raises(UsageError, match=r"write offload=optimizer or offload=activations|a second time: leave it out"):
        parse_words(f"{WORDS},{part}")


@pytest.mark.parametrize("gpu", ["v100", "a100", "h100", "gh200", "gb200"])
def test_the_update_is_bytes_over_the_rates_of_the_host(gpu):
    words = f"gpt2:{gpu},seq512,fp16"
    plain, found, host = osf.load_workload(words), offloaded("optimizer", words=words), GPUS[gpu].host
    count = plain.gradient_bytes // 4
    over, adam = 4 * count / host.link, 28 * count / (CPU_ADAM * host.memory)
    assert found.update_time == pytest.approx(adam + 2 * over)
    assert found.offload.leaving * found.update_time == pytest.approx(over)
    assert found.offload.state_bytes == 16 * count
    assert (found.state_bytes, found.weight_bytes) == (0, 2 * count)
    assert (found.forward_time, found.backward_time) == (plain.forward_time, plain.backward_time)


def test_links_of_hosts_follow_the_generation_of_pcie_and_grace():
    order = [GPUS[name].host.link for name in ("v100", "a100", "h100", "gb200", "gh200")]
    assert order == sorted(set(order))
    assert gpu_of("h100").host == GPUS["h100"].host


SMALL = Workload(
    "small", (Layer("a", 1.0, 2.0, 4),), update_time=16.0, fixed_bytes=4, offload=Offload(("optimizer",), 0.25, 0.25)
)
"""Gradients take 4 s and parameters 4 s over the link, the CPU 8; as many bytes are frozen as are trained."""


@pytest.mark.parametrize(
    ("ranks", "left", "beside", "fetched", "time"),
    [
        (1, 1, False, 0, 8 + 4 + 4),
        (1, 1, True, 0, 8 + (4 - 2) + 4),
        (1, 3, True, 0, 8 + 3 * (4 - 2) + 4),
        (2, 1, True, 0, 4 + 0 + 2),
        (2, 1, False, 0, 4 + 2 + 2),
        (1, 1, True, 1, 8 + (4 - 2) + (8 - 1) + (8 - 2)),
        (2, 2, True, 2, 4 + 0 + 2 * ((4 - 1) + (4 - 2))),
        (16, 1, True, 1, 0.5),
    ],
)
def test_a_shards_update_hides_moves_behind_computation_as_far_as_it_lasts(ranks, left, beside, fetched, time):
    assert shard_update_time(SMALL, ranks, left, beside, fetched) == pytest.approx(time)


PLANS = {"ddp": None, "zero-1": (1, False), "zero-2": (1, False), "zero-3": (1, True), "fsdp2": (1, True, 1)}
"""By named plan, how often gradients leave, whether beside backward, and how often parameters come by all-gathers."""


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_is_longer_by_what_is_not_hidden_and_no_plan_beats_its_bound(plan):
    plain, away = osf.load_workload(WORDS), offloaded("optimizer")
    steps = [PricedSubject(one, osf.load_cluster(CLUSTER), RANKS).predict(plan) for one in (plain, away)]
    if PLANS[plan] is None:
        more = away.update_time - plain.update_time
    else:
        more = shard_update_time(away, RANKS, *PLANS[plan]) - plain.update_time / RANKS
    assert more > 0
    assert steps[1].iteration_time - steps[0].iteration_time == pytest.approx(more, rel=1e-6)
    assert steps[1].lower_bound <= steps[1].iteration_time * (1 + 1e-9)


@pytest.mark.parametrize(
    ("plan", "weights"), [("ddp", 2), ("zero-1", 2), ("zero-2", 2), ("zero-3", 2 / RANKS), ("fsdp2", 0), ("hsdp", 0)]
)
def test_state_leaves_and_weights_are_what_the_framework_keeps(plan, weights):
    away = offloaded("optimizer")
    step = PricedSubject(away, osf.load_cluster(CLUSTER), RANKS).predict(plan)
    held = peak_of(away, step.plan, step.timeline, RANKS).held
    assert held.get(STATE, 0) == 0
    assert held.get(WEIGHTS, 0) == pytest.approx(weights * away.gradient_bytes / 4, rel=2e-3)
    assert peak_of(away, step.plan, step.timeline, RANKS, "adamw").held.get(STATE, 0) == 0


@pytest.mark.parametrize("how", ["none", "full"])
def test_blocks_keep_nothing_and_last_as_long_as_their_activations_take(how):
    words = parse_words(f"gpt2:v100-16gb,seq1024,batch4,fp16,ac={how},offload=activations")
    model, setting = model_of(words), words.setting
    plain = parse_words(f"gpt2:v100-16gb,seq1024,batch4,fp16,ac={how}").setting
    away, link = activations_away(model, setting), GPUS["v100-16gb"].host.link
    before, stays = activations(model, plain)[0], activations(model, setting)[0]
    inside = [bool(model.block_of(module)) for module in model.modules]
    assert sum(away.values()) == sum(size for size, own in zip(before, inside, strict=True) if own) > 0
    assert stays == [0 if own else size for size, own in zip(before, inside, strict=True)]
    alone, beside = (timed(model, Roofline.of(one)) for one in (plain, setting))
    longer = 0
    for block, size in away.items():
        for way in (0, 1):
            own, found = (
                sum(times[one.name][way] for one in model.modules if model.block_of(one) == block)
                for times in (alone, beside)
            )
            assert found == pytest.approx(own + max(0, size / link - own))
            longer += found > own * (1 + 1e-9)
    assert (longer > 0) == (how == "none")


def test_the_peak_has_one_block_and_the_one_that_comes_ahead():
    words = parse_words(f"{WORDS},offload=activations")
    model, setting = model_of(words), words.setting
    away = activations_away(model, setting)
    one = max(away.values())
    peaks = {block: max(peak for module, peak in zip(model.modules, activations(model, setting)[1], strict=True)
                        if model.block_of(module) == block) for block in away}  # fmt: skip
    first, second, *_, last = peaks.values()
    assert second == last == first + one


TARGETS = {
    "deepspeed": '"offload_optimizer": {',
    "zero-2": '"offload_optimizer": {',
    "zero-3": '"offload_optimizer": {',
    "fsdp2": "offload_policy=CPUOffloadPolicy()",
    "hsdp": "offload_policy=CPUOffloadPolicy()",
    "torchtitan": "enable_cpu_offload = true",
    "distributed-optimizer": "--optimizer-cpu-offload --use-precision-aware-optimizer",
}


@pytest.mark.parametrize("target", [*TARGETS, "ddp", "megatron"])
def test_settings_say_what_they_can_and_warn_of_the_rest(target):
    shallow = WORDS.replace(":", "+num_hidden_layers=2:")
    asked = ["--cluster", CLUSTER, "--workers", "8", "--plan", "ddp", "--for", target, "--json"]
    done = invoke(["scale", f"{shallow},offload=optimizer+activations", *asked])
    missing = "activations" if target in TARGETS else "optimizer+activations"
    assert done.exit_code == 0, done.output
    assert f"cannot say offload={missing}" in done.output
    if target in TARGETS:
        without = invoke(["scale", shallow, *asked]).stdout
        assert TARGETS[target] in json.loads(done.stdout)["rendered"]
        assert TARGETS[target] not in json.loads(without)["rendered"]


def test_the_host_needs_memory_for_each_share_and_micro_batch_in_flight():
    away = offloaded("optimizer", "activations")
    asked = [away.name, "--cluster", CLUSTER, "--workers", "8", "--plan"]
    for plan, share in (("ddp", 1), ("fsdp2", 8)):
        notes = " ".join(json.loads(invoke(["scale", *asked, plan, "--json"]).stdout)["notes"])
        each = -(-away.offload.state_bytes // share) + away.offload.activation_bytes
        size = osf.entities.display.show_bytes(each)
        assert f"{size} of host memory for each GPU" in notes
