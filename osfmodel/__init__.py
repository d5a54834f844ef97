"""Predict and plan the communication of synchronous data-parallel training.

>>> import osfmodel as osf
>>> workload = osf.load_workload("resnet50-v100")
>>> cluster = osf.load_cluster("v100-56gib")
>>> osf.predict(workload, cluster, "optimal", 16).timeline.scaling_factor > 0.5
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from osfmodel.batches import at_batch
from osfmodel.cluster import AlphaBeta, Cluster, Contention, FittedRange, Link, NcclShape, Pieces, Protocol, Table
from osfmodel.cost import COST_MODELS, cost_of
from osfmodel.economics import Economics, economics, knee
from osfmodel.effects import EFFECTS, Effects
from osfmodel.engine import ENGINES
from osfmodel.errors import CostError, DataError, JobError, OsfError, PlanError, UsageError
from osfmodel.measurement import Measurement
from osfmodel.network import Change
from osfmodel.plan import Block, Bucket, Plan
from osfmodel.plans import NAMED_PLANS
from osfmodel.predict import Comparison, Prediction, compare, predict
from osfmodel.profiles import load_cluster, load_plan, load_workload, save
from osfmodel.solve import SOLVERS, Limits, Solution, Status
from osfmodel.source import Source
from osfmodel.targets import CONFIG_TARGETS
from osfmodel.timeline import Span, Timeline
from osfmodel.tune import Outcome, Tuning, tune
from osfmodel.what_if import WhatIf
from osfmodel.workload import Layer, Segment, Workload

if TYPE_CHECKING:
    from osfmodel.measurements import load_measurements, save_measurements
    from osfmodel.memory import Level, Memory, memory_of
    from osfmodel.memory_tune import tune_memory
    from osfmodel.memory_tuning import Demand, MemoryTuning
    from osfmodel.runtime.executor import Executor, execute
    from osfmodel.runtime.profiling import profile

__version__ = "0.1.0"

__all__ = [
    "CONFIG_TARGETS",
    "COST_MODELS",
    "EFFECTS",
    "ENGINES",
    "NAMED_PLANS",
    "SOLVERS",
    "AlphaBeta",
    "Block",
    "Bucket",
    "Change",
    "Cluster",
    "Comparison",
    "Contention",
    "CostError",
    "DataError",
    "Demand",
    "Economics",
    "Effects",
    "Executor",
    "FittedRange",
    "JobError",
    "Layer",
    "Level",
    "Limits",
    "Link",
    "Measurement",
    "Memory",
    "MemoryTuning",
    "NcclShape",
    "OsfError",
    "Outcome",
    "Pieces",
    "Plan",
    "PlanError",
    "Prediction",
    "Protocol",
    "Segment",
    "Solution",
    "Source",
    "Span",
    "Status",
    "Table",
    "Timeline",
    "Tuning",
    "UsageError",
    "WhatIf",
    "Workload",
    "__version__",
    "at_batch",
    "compare",
    "cost_of",
    "economics",
    "execute",
    "knee",
    "load_cluster",
    "load_measurements",
    "load_plan",
    "load_workload",
    "memory_of",
    "predict",
    "profile",
    "save",
    "save_measurements",
    "tune",
    "tune_memory",
]


LATE = {
    **dict.fromkeys(("Level", "Memory", "memory_of"), "memory"),
    **dict.fromkeys(("Demand", "MemoryTuning"), "memory_tuning"),
    "tune_memory": "memory_tune",
    **dict.fromkeys(("load_measurements", "save_measurements"), "measurements"),
    **dict.fromkeys(("Executor", "execute"), "runtime.executor"),
    "profile": "runtime.profiling",
}
"""What runs models, plans memory or reads runs, and its module: not loaded by who only predicts."""


def __getattr__(name: str) -> Any:
    """Those of LATE, when first asked for."""
    if name in LATE:
        return getattr(import_module(f"osfmodel.{LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
