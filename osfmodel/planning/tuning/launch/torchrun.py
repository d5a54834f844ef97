"""Commands that start the workers of a tuned plan: torchrun on each node, by hand or under Slurm."""

from __future__ import annotations

import re

from osfmodel.cost.model import layout_of
from osfmodel.entities.errors import UsageError
from osfmodel.planning.results import Tuning
from osfmodel.planning.tuning.launch.snippet import Snippet
from osfmodel.targets import CONFIG_TARGETS

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
        raise UsageError(f"a launch is of one worker count, such as --workers {last}: give one to --workers")
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


TORCHRUN = Snippet("the command that starts the workers on each node", torchrun)
SLURM = Snippet("a batch script for sbatch that starts them", slurm)
