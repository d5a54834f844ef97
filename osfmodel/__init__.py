"""Predict and plan the communication of synchronous data-parallel training.

>>> import osfmodel as osf
>>> workload = osf.load_workload("resnet50-v100")
>>> cluster = osf.load_cluster("v100-56gib")
>>> osf.predict(workload, cluster, "optimal", 16).timeline.scaling_factor > 0.5
True

Each name is loaded when it is first asked for, so that ``import osfmodel`` takes no time.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # that of typing takes 20 ms to import
if TYPE_CHECKING:
    from typing import Any

    from osfmodel.cost import COST_MODELS as COST_MODELS
    from osfmodel.cost import cost_of as cost_of
    from osfmodel.cost.clusters import load_cluster as load_cluster
    from osfmodel.cost.clusters import pricing_of as pricing_of
    from osfmodel.cost.faster_network import Change as Change
    from osfmodel.cost.pricing import Pricing as Pricing
    from osfmodel.counting import load_workload as load_workload
    from osfmodel.counting.groups import Parallelism as Parallelism
    from osfmodel.diagnosis import Explanation as Explanation
    from osfmodel.diagnosis import Remedy as Remedy
    from osfmodel.diagnosis.comparing import RunComparison as RunComparison
    from osfmodel.diagnosis.comparing import compare_runs as compare_runs
    from osfmodel.engine import ENGINES as ENGINES
    from osfmodel.engine import predict_timeline as predict_timeline
    from osfmodel.engine.memory import Level as Level
    from osfmodel.engine.memory import Memory as Memory
    from osfmodel.engine.memory import memory_of as memory_of
    from osfmodel.entities.batches import at_batch as at_batch
    from osfmodel.entities.cluster import AlphaBeta as AlphaBeta
    from osfmodel.entities.cluster import Cluster as Cluster
    from osfmodel.entities.cluster import Contention as Contention
    from osfmodel.entities.cluster import FittedRange as FittedRange
    from osfmodel.entities.cluster import Link as Link
    from osfmodel.entities.cluster import NcclShape as NcclShape
    from osfmodel.entities.cluster import Pieces as Pieces
    from osfmodel.entities.cluster import Protocol as Protocol
    from osfmodel.entities.cluster import Table as Table
    from osfmodel.entities.effects import EFFECTS as EFFECTS
    from osfmodel.entities.effects import Effects as Effects
    from osfmodel.entities.errors import CostError as CostError
    from osfmodel.entities.errors import DataError as DataError
    from osfmodel.entities.errors import ForeignFileError as ForeignFileError
    from osfmodel.entities.errors import JobError as JobError
    from osfmodel.entities.errors import OsfError as OsfError
    from osfmodel.entities.errors import PlanError as PlanError
    from osfmodel.entities.errors import UsageError as UsageError
    from osfmodel.entities.files.measurements import load_measurements as load_measurements
    from osfmodel.entities.files.measurements import save_measurements as save_measurements
    from osfmodel.entities.files.profiles import load_plan as load_plan
    from osfmodel.entities.files.profiles import save as save
    from osfmodel.entities.measurement import Measurement as Measurement
    from osfmodel.entities.measurement import Source as Source
    from osfmodel.entities.plan import Block as Block
    from osfmodel.entities.plan import Bucket as Bucket
    from osfmodel.entities.plan import Objective as Objective
    from osfmodel.entities.plan import Plan as Plan
    from osfmodel.entities.plan import Search as Search
    from osfmodel.entities.plan import contiguous_plan as contiguous_plan
    from osfmodel.entities.plan import grouped_plan as grouped_plan
    from osfmodel.entities.savings import Segment as Segment
    from osfmodel.entities.timeline import Span as Span
    from osfmodel.entities.timeline import Timeline as Timeline
    from osfmodel.entities.version import __version__ as __version__
    from osfmodel.entities.workload import Layer as Layer
    from osfmodel.entities.workload import Workload as Workload
    from osfmodel.planning.explaining import explain as explain
    from osfmodel.planning.memory import Demand as Demand
    from osfmodel.planning.memory import MemoryBudget as MemoryBudget
    from osfmodel.planning.memory import MemoryTuning as MemoryTuning
    from osfmodel.planning.memory.search import tune_memory as tune_memory
    from osfmodel.planning.predictions import Economics as Economics
    from osfmodel.planning.predictions import compare as compare
    from osfmodel.planning.predictions import economics as economics
    from osfmodel.planning.predictions import knee as knee
    from osfmodel.planning.predictions import predict as predict
    from osfmodel.planning.results import Comparison as Comparison
    from osfmodel.planning.results import Outcome as Outcome
    from osfmodel.planning.results import Prediction as Prediction
    from osfmodel.planning.results import Tuning as Tuning
    from osfmodel.planning.scaling.curve import Anchor as Anchor
    from osfmodel.planning.scaling.curve import ScaleCurve as ScaleCurve
    from osfmodel.planning.scaling.curve import ScalePoint as ScalePoint
    from osfmodel.planning.scaling.curve import TrainingLength as TrainingLength
    from osfmodel.planning.scaling.goals import Answer as Answer
    from osfmodel.planning.scaling.goals import Cheapest as Cheapest
    from osfmodel.planning.scaling.goals import Goals as Goals
    from osfmodel.planning.scaling.goals import Machine as Machine
    from osfmodel.planning.scaling.inverse import answers as answers
    from osfmodel.planning.scaling.inverse import cheapest as cheapest
    from osfmodel.planning.scaling.layouts import scale_layouts as scale_layouts
    from osfmodel.planning.scaling.replicas import replica_workload as replica_workload
    from osfmodel.planning.scaling.scale import ScaleOptions as ScaleOptions
    from osfmodel.planning.scaling.scale import scale as scale
    from osfmodel.planning.scaling.settings import settings as settings
    from osfmodel.planning.sweep.results import Sweep as Sweep
    from osfmodel.planning.sweep.results import load_sweep as load_sweep
    from osfmodel.planning.sweep.running import sweep as sweep
    from osfmodel.planning.tuning import tune as tune
    from osfmodel.planning.what_if import WhatIf as WhatIf
    from osfmodel.runtime.executor import Executor as Executor
    from osfmodel.runtime.executor import execute as execute
    from osfmodel.runtime.profiler import profile as profile
    from osfmodel.runtime.watching import Watch as Watch
    from osfmodel.runtime.watching import watch as watch
    from osfmodel.solve import SOLVERS as SOLVERS
    from osfmodel.solve.solution import Limits as Limits
    from osfmodel.solve.solution import Question as Question
    from osfmodel.solve.solution import Solution as Solution
    from osfmodel.solve.solution import Status as Status
    from osfmodel.targets import CONFIG_TARGETS as CONFIG_TARGETS
    from osfmodel.targets.named_plans import NAMED_PLANS as NAMED_PLANS
    from osfmodel.targets.named_plans import make_plan as make_plan

PUBLIC = {
    "cost": "COST_MODELS cost_of",
    "cost.clusters": "load_cluster pricing_of",
    "cost.faster_network": "Change",
    "cost.pricing": "Pricing",
    "counting": "load_workload",
    "counting.groups": "Parallelism",
    "diagnosis": "Explanation Remedy",
    "diagnosis.comparing": "RunComparison compare_runs",
    "engine": "ENGINES predict_timeline",
    "engine.memory": "Level Memory memory_of",
    "entities.batches": "at_batch",
    "entities.cluster": "AlphaBeta Cluster Contention FittedRange Link NcclShape Pieces Protocol Table",
    "entities.effects": "EFFECTS Effects",
    "entities.errors": "CostError DataError ForeignFileError JobError OsfError PlanError UsageError",
    "entities.files.measurements": "load_measurements save_measurements",
    "entities.files.profiles": "load_plan save",
    "entities.measurement": "Measurement Source",
    "entities.plan": "Block Bucket Objective Plan Search contiguous_plan grouped_plan",
    "entities.savings": "Segment",
    "entities.timeline": "Span Timeline",
    "entities.version": "__version__",
    "entities.workload": "Layer Workload",
    "planning.explaining": "explain",
    "planning.scaling.goals": "Answer Cheapest Goals Machine",
    "planning.scaling.inverse": "answers cheapest",
    "planning.memory": "Demand MemoryBudget MemoryTuning",
    "planning.memory.search": "tune_memory",
    "planning.predictions": "Economics compare economics knee predict",
    "planning.scaling.replicas": "replica_workload",
    "planning.results": "Comparison Outcome Prediction Tuning",
    "planning.scaling.layouts": "scale_layouts",
    "planning.scaling.scale": "ScaleOptions scale",
    "planning.scaling.settings": "settings",
    "planning.scaling.curve": "Anchor ScaleCurve ScalePoint TrainingLength",
    "planning.sweep.results": "Sweep load_sweep",
    "planning.sweep.running": "sweep",
    "planning.tuning": "tune",
    "planning.what_if": "WhatIf",
    "runtime.executor": "Executor execute",
    "runtime.profiler": "profile",
    "runtime.watching": "Watch watch",
    "solve": "SOLVERS",
    "solve.solution": "Limits Question Solution Status",
    "targets": "CONFIG_TARGETS",
    "targets.named_plans": "NAMED_PLANS make_plan",
}
"""The public names of each module."""
MODULES = {name: module for module, names in PUBLIC.items() for name in names.split()}
__all__ = [*sorted(MODULES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """The public name ``name``, loaded from its module. Raises AttributeError for any other."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"osfmodel.{MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
