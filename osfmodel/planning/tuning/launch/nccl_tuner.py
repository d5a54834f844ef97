"""``nccl_tuner.conf`` of NCCL's example tuner plugin: the algorithm and protocol for each message size.

A line is ``collective,min,max,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff`` (NVIDIA/nccl,
ext-tuner/example, README.md and plugin.c, read): sizes in bytes, both ends included, -1 for any. The first line that
matches decides. Only the sizes that the plan sends are covered, by what the nccl cost model takes to be the fastest.
"""

from __future__ import annotations

from itertools import groupby

from osfmodel.cost.model import layout_of
from osfmodel.cost.nccl import ways
from osfmodel.cost.nccl_lines import fastest
from osfmodel.entities.errors import UsageError
from osfmodel.planning.results import Tuning
from osfmodel.planning.tuning.launch.snippet import Snippet

ALGORITHMS = {
    "ring": "ring",
    "tree": "tree",
    "NVLS": "nvls",
    "NVLSTree": "nvls_tree",
    "CollNetDirect": "collnet_direct",
    "CollNetChain": "collnet_chain",
}
"""Algorithm names in the file, by the cost model's names; protocols are in lower case."""


def write(tuning: Tuning) -> str:
    """The content of ``nccl_tuner.conf``.

    Raises UsageError for a cluster whose cost model has no algorithms, for several worker counts, and
    for a plan that splits all-reduces.
    """
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
    found = ways(cluster.nccl, place)
    sizes = sorted({bucket.size for bucket in tuning.plan.buckets})
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
# nccl-tests has shown it to be faster (NCCL_ALGO and NCCL_PROTO set one). Sizes are bytes, least to most of the plan.
# NCCL_TUNER_PLUGIN names the plugin of NCCL's ext-tuner/example, NCCL_TUNER_CONFIG_FILE this file.
"""


NCCL_TUNER = Snippet("NCCL's algorithm and protocol for the messages of the plan", write)
