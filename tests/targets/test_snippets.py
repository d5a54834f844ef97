"""Launch lines as bash, Slurm and torchrun read them; nccl_tuner.conf as NCCL's example plugin reads it."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest

import osfmodel as osf
from osfmodel.cost import cost_of, nccl
from osfmodel.cost.model import layout_of
from osfmodel.entities.errors import UsageError
from osfmodel.planning.tuning.launch import SNIPPETS
from osfmodel.targets import ddp
from osfmodel.targets.target import Launch
from tests import kept
from tests.commands import invoke


def tuned(cluster="v100-10gbe", workers=16, target="ddp", workload="alexnet-pipedream"):
    return kept.tuned(workload, cluster, workers, target)


def words(text):
    """Words of the command, without comments, with the batch script's meeting in its place."""
    found = shlex.split(text, comments=True)
    meeting = next((word.removeprefix("meeting=") for word in found if word.startswith("meeting=")), "")
    return [part for word in found for part in (meeting.split() if word == "$meeting" else [word])]


def settings(found):
    """Arguments as torchrun itself parses them, if it is installed."""
    run = pytest.importorskip("torch.distributed.run", reason="torch is not installed: pip install torch")
    return run.get_args_parser().parse_args(found[found.index("torchrun") + 1 :])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["torchrun", "slurm"])
@pytest.mark.parametrize(("workers", "nodes", "each"), [(16, 4, 4), (4, 1, 4), (2, 1, 2)])
def test_torchrun_starts_as_many_workers_as_were_tuned_for(name, workers, nodes, each):
    text = SNIPPETS[name].write(tuned(workers=workers))
    read = settings(words(text))
    assert ((read.standalone and 1) or int(read.nnodes)) == nodes
    assert int(read.nproc_per_node) == each
    assert read.training_script == "train.py"
    assert read.standalone or read.rdzv_backend == "c10d"


def test_the_batch_script_is_bash_and_says_the_same_to_slurm(tmp_path):
    text = SNIPPETS["slurm"].write(tuned())
    if shutil.which("bash"):
        (tmp_path / "job.sh").write_text(text)
        subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True)
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    for line in ("--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=4", "--job-name=alexnet-pipedream"):
        assert f"\n#SBATCH {line}\n" in text


@pytest.mark.parametrize("name", ["torchrun", "slurm"])
@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"workers": 7}, "evenly"),
        ({"workers": (4, 8)}, "one worker count"),
        ({"target": "horovod"}, "horovodrun .* -o horovod.env"),
        ({"target": "byteps"}, "bpslaunch .* -o byteps.env"),
    ],
)
def test_what_torchrun_cannot_start_is_refused(name, made, why):
    with pytest.raises(UsageError, match=why):
        SNIPPETS[name].write(tuned(**made))


@pytest.mark.parametrize("name", ["torchrun", "slurm"])
def test_a_new_target_says_itself_what_starts_it(name, monkeypatch):
    monkeypatch.setitem(osf.CONFIG_TARGETS, "new", replace(ddp.TARGET, launch=Launch(launcher="newrun does")))
    with pytest.raises(UsageError, match="torchrun does not start new: newrun does"):
        SNIPPETS[name].write(replace(tuned(), target="new"))


@pytest.mark.usefixtures("kept_tuning")
@pytest.mark.parametrize("name", ["torchrun", "slurm"])
def test_the_settings_are_given_or_it_is_said_where_they_are(name, tmp_path):
    """Megatron's as its arguments, DeepSpeed's file by its flags; of others a file that the command writes."""
    for target, entry in osf.CONFIG_TARGETS.items():
        if entry.launch.launcher:
            continue
        tuning = tuned(target=target)
        found = words(SNIPPETS[name].write(tuning))
        assert " ".join(found[found.index("train.py") + 1 :]) == entry.launch.arguments(tuning.knobs)
        text = SNIPPETS[name].write(tuning)
        assert f"# For {target}: " in text
        named = re.search(r"-o ([a-z]+[.][a-z]+)", text)
        if named is not None:
            asked = ["tune", "alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16", "--for", target, "-o"]
            assert invoke([*asked, str(tmp_path / named[1])]).exit_code == 0
        else:
            assert entry.launch.arguments(tuning.knobs)
    megatron, deepspeed = tuned(target="megatron"), tuned(target="deepspeed")
    assert f"--ddp-bucket-size {megatron.config['ddp_bucket_size']}\n" in SNIPPETS[name].write(megatron)
    parser = argparse.ArgumentParser()
    parser.add_argument("--deepspeed", action="store_true")
    parser.add_argument("--deepspeed_config")
    found = words(SNIPPETS[name].write(deepspeed))
    assert parser.parse_args(found[found.index("train.py") + 1 :]).deepspeed_config == "deepspeed.json"


def matching(text, size, nodes, ranks):
    """(algorithm, protocol) of the first line that the plugin would apply; None where none matches."""
    names = {"ring": "ring", "tree": "tree", "nvls": "NVLS", "nvls_tree": "NVLSTree"}
    protocols = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
    for line in text.splitlines():
        assert len(line) < 256, "the plugin reads 255 characters of a line"
        if line and not line.startswith("#"):
            kind, least, most, algorithm, protocol, *others = line.split(",")
            channels, for_nodes, for_ranks, operations, registered = map(int, others)
            assert kind == "allreduce"
            assert (channels, operations, registered) == (-1, -1, -1)
            if int(least) <= size <= int(most) and (for_nodes, for_ranks) == (nodes, ranks):
                return names[algorithm], protocols[protocol]
    return None


@pytest.mark.parametrize(
    ("cluster", "workers"),
    [("nccl-h100-ndr", 32), ("nccl-v100-dgx1", 8), pytest.param("nccl-h100-node", 8, marks=pytest.mark.long)],
)
def test_every_message_finds_what_the_model_prices(cluster, workers):
    tuning, shape = tuned(cluster, workers, "byteps"), osf.load_cluster(cluster)
    text, place = SNIPPETS["nccl-tuner"].write(tuning), layout_of(workers, shape.gpus_per_node)
    price, ways = cost_of(shape, workers), nccl.ways(shape.nccl, place)
    sizes = {bucket.size for bucket in tuning.plan.buckets}
    assert len(sizes) > 3
    for size in sizes:
        found = matching(text, size, place.nodes, workers)
        alone = nccl.lines({found: ways[found]})
        assert min(a + b * size for a, b in alone) == pytest.approx(price(size), rel=1e-6)
    assert matching(text, max(sizes) + 1, place.nodes, workers) is None
    assert matching(text, min(sizes), place.nodes, workers + 1) is None


def test_other_clusters_know_no_algorithms():
    with pytest.raises(UsageError, match="cost model nccl"):
        SNIPPETS["nccl-tuner"].write(tuned())


def test_one_worker_count_decides():
    with pytest.raises(UsageError, match="give one to --workers"):
        SNIPPETS["nccl-tuner"].write(tuned("nccl-h100-ndr", (8, 16)))


def test_the_command_prints_the_lines_alone():
    asked = ["tune", "alexnet-pipedream", "--cluster", "v100-10gbe", "--workers", "16", "--lines", "slurm"]
    assert invoke(asked).output == SNIPPETS["slurm"].write(tuned())
    result = invoke([*asked[:-1], "nccl-tuner"])
    assert result.exit_code == 2
    assert "cost model nccl" in result.output
