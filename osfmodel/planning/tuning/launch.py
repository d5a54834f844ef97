"""Further lines for a tuned plan besides the framework's settings: commands that start its workers, NCCL's algorithms.

SNIPPETS maps a name to its Snippet. To add one: a function (Tuning) -> text, which raises UsageError with the reason if
it does not apply to a tuning, and one line in the table. ``osf tune --lines NAME`` prints it; tests/conformance runs
over the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import NamedTuple

from osfmodel.cost.model import layout_of
from osfmodel.entities.errors import UsageError
from osfmodel.planning.results import Tuning
from osfmodel.targets import CONFIG_TARGETS


class Snippet(NamedTuple):
    """An entry of SNIPPETS.

    summary: its use, in half a line
    write:   (tuning) -> the whole file
    """

    summary: str
    write: Callable[[Tuning], str]


PORT = 29500
"""torchrun's own default port for the rendezvous."""


def torchrun(tuning: Tuning) -> str:
    """The command for every node; one node alone needs no rendezvous. Raises UsageError as :func:`places`."""
    nodes, each = places(tuning)
    script = _script(tuning)
    if nodes == 1:
        return f"{_head(tuning, nodes, each)}torchrun --standalone --nproc-per-node {each} {script}\n"
    meeting = f"--rdzv-backend c10d --rdzv-id osf --rdzv-endpoint HOST:{PORT}"
    where = f"# On each of the {nodes} nodes, HOST being the name of one of them, the same everywhere:\n"
    return f"{_head(tuning, nodes, each)}{where}torchrun --nnodes {nodes} --nproc-per-node {each} {meeting} {script}\n"


def slurm(tuning: Tuning) -> str:
    """A script for sbatch: one torchrun per node; they meet on the first. Raises UsageError as :func:`places`."""
    nodes, each = places(tuning)
    head = _head(tuning, nodes, each)
    job = re.sub(r"[^\w.-]+", "-", tuning.workload.name)
    return BATCH.format(head=head, name=job, nodes=nodes, each=each, port=PORT, script=_script(tuning))


def places(tuning: Tuning) -> tuple[int, int]:
    """Number of nodes, and workers on each.

    Raises UsageError for several worker counts, for workers that do not fill nodes evenly, and for a framework with a
    launcher of its own.
    """
    launcher = CONFIG_TARGETS[tuning.target].launch.launcher
    if launcher:
        raise UsageError(f"torchrun does not start {tuning.target}: {launcher}")
    if len(tuning.outcomes) > 1:
        last = tuning.outcomes[-1].workers
        raise UsageError(f"torchrun starts one worker count, such as --workers {last}: give one to --workers")
    place = layout_of(tuning.outcomes[0].workers, tuning.cluster.gpus_per_node)
    if place.fullest != place.emptiest:
        raise UsageError(
            f"{place.workers} workers do not fill {place.nodes} nodes of {tuning.cluster.gpus_per_node} evenly, as "
            f"torchrun starts them: give a multiple of {tuning.cluster.gpus_per_node} to --workers"
        )
    return place.nodes, place.fullest


def _head(tuning: Tuning, nodes: int, each: int) -> str:
    workers = tuning.outcomes[0].workers
    return (
        f"# {tuning.workload.name} on {tuning.cluster.name}: {workers} workers, {nodes} x {each}.\n"
        f"# For {tuning.target}: {CONFIG_TARGETS[tuning.target].script}.\n"
    )


def _script(tuning: Tuning) -> str:
    """The training script, with the settings if they are its arguments."""
    return f"train.py {CONFIG_TARGETS[tuning.target].launch.arguments(tuning.knobs)}".strip()


BATCH = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={each}
{head}\
# Add what your site asks for: account, partition, time, --cpus-per-task.
set -euo pipefail
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
meeting="--rdzv-backend c10d --rdzv-id $SLURM_JOB_ID --rdzv-endpoint $host:{port}"
srun torchrun --nnodes {nodes} --nproc-per-node {each} $meeting {script}
"""


ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
}
"""Algorithm names in the file, by the cost model's names; protocols are in lower case."""


def nccl_tuner(tuning: Tuning) -> str:
    """The content of ``nccl_tuner.conf`` of NCCL's example tuner plugin: the algorithm and protocol for each size sent.

    A line is ``collective,min,max,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff`` (NVIDIA/nccl,
    ext-tuner/example, README.md and plugin.c, read): sizes in bytes, both ends included, -1 for any. The first line
    that matches decides. Only the sizes that the plan sends are covered, by what the nccl cost model takes to be the
    fastest. Raises UsageError for a cluster whose cost model has no algorithms, for several worker counts, and
    for a plan that splits all-reduces.
    """
    from osfmodel.cost.nccl import ways
    from osfmodel.cost.nccl_lines import fastest

    cluster = tuning.cluster
    if cluster.cost_model != "nccl" or cluster.nccl is None:
        raise UsageError(
            f"cluster {cluster.name!r} has the cost model {cluster.cost_model!r}, which knows no NCCL algorithms: "
            "nccl-tuner is for clusters of cost model nccl ('osf list clusters')"
        )
    if len(tuning.outcomes) > 1:
        last = tuning.outcomes[-1].workers
        raise UsageError(f"algorithms depend on the count, such as --workers {last}: give one to --workers")
    if tuning.plan.split:
        raise UsageError(
            f"the plan for {tuning.target} splits all-reduces in two: nccl-tuner is for plans that send them whole"
        )
    place = layout_of(tuning.outcomes[0].workers, cluster.gpus_per_node)
    sizes = sorted({bucket.size for bucket in tuning.plan.buckets})
    found = ways(cluster.nccl, place)
    chosen = [(fastest(found, size), size) for size in sizes]
    lines = []
    for (algorithm, protocol), group in groupby(chosen, key=lambda pair: pair[0]):
        bounds = [size for _, size in group]
        lines.append(
            f"allreduce,{bounds[0]},{bounds[-1]},{ALGORITHMS[algorithm]},{protocol.lower()},-1,"
            f"{place.nodes},{place.workers},-1,-1\n"
        )
    return HEAD.format(name=tuning.workload.name, cluster=cluster.name, workers=place.workers) + "".join(lines)


HEAD = """\
# {name} on {cluster}, {workers} workers.
# collective,min,max,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff
# Predicted from a data sheet, not measured, and NCCL chooses by itself by much the same figures: use a line only where
# nccl-tests has shown it to be faster (NCCL_ALGO and NCCL_PROTO set one). Sizes are bytes of messages.
# NCCL_TUNER_PLUGIN names the plugin of NCCL's ext-tuner/example, NCCL_TUNER_CONFIG_FILE this file.
"""


SNIPPETS: Mapping[str, Snippet] = {
    "torchrun": Snippet("the command that starts the workers on each node", torchrun),
    "slurm": Snippet("a batch script for sbatch that starts them", slurm),
    "nccl-tuner": Snippet("NCCL's algorithm and protocol for the messages of the plan", nccl_tuner),
}
