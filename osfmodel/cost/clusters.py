"""Clusters by name, by file, or in words."""

from __future__ import annotations

import os

from osfmodel.cost import COST_MODELS
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.errors import UsageError
from osfmodel.entities.files import documents
from osfmodel.entities.files.profiles import locate, read_own


def load_cluster(name_or_path: str | os.PathLike[str]) -> Cluster:
    """A bundled cluster by name, one from a JSON file, or one in words.

    In words: ``"ring:50us,10Gbps"``, a textbook algorithm with the latency and the bandwidth of the one link between
    all workers; or ``"hierarchical:8,5us,200GB/s,50us,25Gbps"``, GPUs per node, the link inside a node, the link
    between nodes, and optionally how many such links (NICs) a node has, 1 if left out; or ``"nccl:h100x8,400Gbps"``,
    kind of GPU, GPUs per node, and the network bandwidth of each GPU, left out for a single node. Raises UsageError for
    an unknown name or a bad quantity, DataError for a file that cannot be used.
    """
    model, separator, words = str(name_or_path).partition(":")
    if separator and model in COST_MODELS:
        from_spec = COST_MODELS[model].from_spec
        if from_spec is None:
            said = ", ".join(name for name, entry in COST_MODELS.items() if entry.from_spec is not None)
            raise UsageError(
                f"a cluster of {model!r} cannot be said in words, it has figures from a file: those that can are {said}"
            )
        return from_spec(f"{model}:{words}", words.split(","))
    return read_own(locate(name_or_path, "cluster"), documents.decode_cluster, "cluster")
