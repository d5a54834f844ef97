"""Executors: the programs that run a plan, with their effects, their memory and the limits of their runs.

At the end are names by which settings of a job go in files of frameworks: targets write them, and readers of jobs read
them.

To add one: a module in ``runtime/`` and one row here. No other module compares with an executor's name; the tests in
tests/conformance/test_executors.py run over the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from osfmodel.entities.effects import COUNTED, REPLAYED_ON_CPU, Effects


class Storage(NamedTuple):
    """Memory for gradients.

    gradients: whether each has memory of its own from its backward until the update
    buckets:   whether buckets stay, as long as the plan does not release them
    """

    gradients: bool
    buckets: bool


class RunSupport(NamedTuple):
    """The use of an executor by ``osf run`` and ``osf bench``.

    module:  in it ``run(asked, settings, place, voice, watch)`` trains and returns measurements, and
             ``require_installed(command)`` raises UsageError
    options: options of ``osf run`` that not every executor takes
    refusal: the message if they are given with an ``{executor}`` that does not take them
    backend: the only backend that it works with; "" for any
    profiled: whether a model needs a profile (``--workload``)
    in_turn: whether it runs plans of osf.execute in turn with its own
    bench:   the module whose ``measure_cluster(asked, limit, place, tell, watch)`` measures its collectives; "" for
             torch's
    """

    module: str
    options: frozenset[str]
    refusal: str
    backend: str = ""
    profiled: bool = False
    in_turn: bool = False
    bench: str = ""


class ExecutorRow(NamedTuple):
    """Properties that distinguish one executor from another.

    name:       in commands and files
    summary:    half a line; the part before the colon is what messages call it
    conditions: that its runs state
    effects:    (effects, conditions of a run) -> the effects that apply to this run
    storage:    of gradients; None if not known
    any_plan:   whether it runs any plan; else only all-reduces on one channel with a barrier
    in_flight:  collectives at once for each channel of a plan; None for the library's own number
    one_by_one: whether collectives go one at a time, so that each finds an idle network; also where the library runs
                several at once
    states_plan: whether its runs must state the plan (condition ``sent``)
    prefix:     of plans that it runs by turns with those of the run's executor; "" if it does not
    run:        None if ``osf run --executor`` does not offer it
    """

    name: str
    summary: str
    conditions: dict[str, str]
    effects: Callable[[Effects, Mapping[str, str]], Effects]
    storage: Storage | None = None
    any_plan: bool = False
    in_flight: int | None = None
    one_by_one: bool = False
    states_plan: bool = False
    prefix: str = ""
    run: RunSupport | None = None

    @property
    def called(self) -> str:
        """The name in messages."""
        return self.summary.partition(":")[0]

    def carries(self, plain: bool) -> bool:
        """Whether it can run a plan that is ``plain`` (``Plan.plain``) or not."""
        return self.any_plan or plain


def _without_horovods(effects: Effects) -> Effects:
    """The effects without Horovod's fusion buffer and negotiation."""
    return replace(effects, fusion_copy=0, negotiation=0, negotiation_miss=0)


def _replayed(effects: Effects, conditions: Mapping[str, str]) -> Effects:
    """The effects that a replay on a CPU shows: it computes by a timetable, so that other work fits in between.

    Hooks that compute delay the timetable as well, copies into buckets included.
    """
    if not conditions.items() >= REPLAYED_ON_CPU.items():
        return effects
    copy_in = effects.copy_in if conditions.items() >= COUNTED.items() else 0
    return replace(effects, copy_in=copy_in, hook_time=0, tensor_time=0, compute_slowdown=0, node_slowdown=0)


def _of_ddp(effects: Effects, conditions: Mapping[str, str]) -> Effects:
    """The effects under DDP; with its option ``gradient_as_bucket_view`` gradients live in the buckets: no copies.

    For a run that does not state its executor, Horovod's effects are charged as they are given.
    """
    found = _replayed(effects, conditions)
    found = _without_horovods(found) if "executor" in conditions else found
    return replace(found, copy_in=0, copy_out=0) if "gradient_as_bucket_view" in conditions else found


def _of_runtime(effects: Effects, conditions: Mapping[str, str]) -> Effects:
    """The effects under osf.execute, which scales each gradient on its way into its bucket, where it stays.

    Scaling passes over memory once, as DDP's copy does; DDP's hook time does not apply to its hooks.
    """
    return _replayed(_without_horovods(replace(effects, copy_out=0, hook_time=0)), conditions)


def _of_horovod(effects: Effects, conditions: Mapping[str, str]) -> Effects:
    """The effects under Horovod: its fusion buffer and negotiation, none of DDP's copies and hooks."""
    return _replayed(replace(effects, copy_in=0, copy_out=0, hook_time=0, tensor_time=0), conditions)


def _of_fsdp(effects: Effects, conditions: Mapping[str, str]) -> Effects:
    """The effects where parameters or optimizers are sharded: copies by group, and none of DDP's hooks by bucket.

    Each tensor costs as much as under DDP, so that a comparison favours neither: it was not measured under these. In a
    replay the host copies while computation sleeps; else copies are computation, and not the host's.
    """
    found = _replayed(replace(_without_horovods(effects), hook_time=0), conditions)
    replayed = conditions.items() >= REPLAYED_ON_CPU.items()
    return replace(found, copy_out=0) if replayed else replace(found, group_copy=0)


_WITH_TORCH = RunSupport(
    "osfmodel.runtime.training.run",
    frozenset({"find_unused_parameters", "static_graph", "gradient_as_bucket_view", "comm_hook"}),
    "options of DDP are given, and {executor} runs the plans: leave them out",
    in_turn=True,
)
LOCAL = ExecutorRow(
    "local",
    "a single worker: each gradient from its backward until the update",
    conditions={},
    effects=_of_ddp,
    storage=Storage(gradients=True, buckets=False),
)
DDP = ExecutorRow(
    "ddp",
    "PyTorch DDP: gradients, and buckets that hold them once more",
    conditions={},
    effects=_of_ddp,
    storage=Storage(gradients=True, buckets=True),
    run=_WITH_TORCH,
)
VIEW = ExecutorRow(
    "ddp-view",
    "PyTorch DDP with gradient_as_bucket_view: gradients inside buckets that stay",
    conditions={"gradient_as_bucket_view": "True"},
    effects=_of_ddp,
    storage=Storage(gradients=False, buckets=True),
)
RUNTIME = ExecutorRow(
    "runtime",
    "osf.execute: gradients inside buckets that stay, or come and go with release",
    conditions={"executor": "runtime"},
    effects=_of_runtime,
    storage=Storage(gradients=False, buckets=True),
    any_plan=True,
    in_flight=1,
    states_plan=True,
    prefix="runtime:",
    run=_WITH_TORCH,
)
HOROVOD = ExecutorRow(
    "horovod",
    "Horovod: a fusion buffer, and a loop that negotiates what is sent",
    conditions={"executor": "horovod"},
    effects=_of_horovod,
    in_flight=1,
    run=RunSupport(
        "osfmodel.runtime.horovod.run",
        frozenset({"timeline", "compression"}),
        "--timeline and --compression are Horovod's: give --executor horovod",
        backend="gloo",
        profiled=True,
        bench="osfmodel.runtime.horovod.run",
    ),
)
FSDP = ExecutorRow(
    "fsdp2",
    "PyTorch FSDP2: shards, and parameters that are gathered by group",
    conditions={"executor": "fsdp2"},
    effects=_of_fsdp,
    in_flight=1,
    one_by_one=True,
    states_plan=True,
    run=RunSupport(
        "osfmodel.runtime.sharded.run",
        frozenset({"asynchronous"}),
        "--asynchronous is FSDP2's: give --executor fsdp2",
        backend="gloo",
    ),
)
DEEPSPEED = ExecutorRow(
    "deepspeed",
    "DeepSpeed: ZeRO's shards of the optimizer's state, of gradients and of parameters",
    conditions={"executor": "deepspeed"},
    effects=_of_fsdp,
    in_flight=1,
)
MEGATRON = ExecutorRow(
    "megatron",
    "Megatron-LM: gradients and parameters in buffers, shards of the optimizer's state",
    conditions={"executor": "megatron"},
    effects=_of_fsdp,
    in_flight=1,
)
EXECUTORS: Mapping[str, ExecutorRow] = {
    row.name: row for row in (LOCAL, DDP, VIEW, RUNTIME, HOROVOD, FSDP, DEEPSPEED, MEGATRON)
}
KEEPERS: Mapping[str, Storage] = {name: row.storage for name, row in EXECUTORS.items() if row.storage is not None}
"""Storage of gradients by executor, if known."""


def executor_of(conditions: Mapping[str, str]) -> ExecutorRow:
    """The executor that a run's conditions state; DDP if they state none, or one that is not in the table."""
    return EXECUTORS.get(conditions.get("executor", DDP.name), DDP)


def effects_under(effects: Effects, conditions: Mapping[str, str]) -> Effects:
    """The effects that apply to a run of ``osf run`` with these conditions."""
    return executor_of(conditions).effects(effects, conditions)


TITAN_DEGREES = {kind: f"{kind}_parallel_degree" for kind in ("tensor", "pipeline", "context", "expert")}
"""torchtitan's keys of the size of a group, by its kind."""
CONVERTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "float8": (
        "float8",
        {"enable_fsdp_float8_all_gather": True, "precompute_float8_dynamic_scale_for_fsdp": True},
    ),
    "float8-rowwise": ("float8", {"recipe_name": "rowwise"}),
    "mxfp8": ("mx", {"recipe_name": "mxfp8_cublas"}),
}
"""torchtitan's converter of linear layers and its settings, by narrow recipe; the head stays in bfloat16."""
MEGATRON_DEGREES = {
    "tensor": "tensor_model_parallel_size", "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size", "expert": "expert_model_parallel_size",
    "chunks": "num_virtual_stages_per_pipeline_rank",
}  # fmt: skip
"""Megatron's arguments for the size of a group, by its kind."""
RECOMPUTED: Mapping[str, dict[str, Any]] = {
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Megatron's arguments for activation checkpointing."""
PRECISION: Mapping[str, dict[str, Any]] = {
    "bfloat16": {"bf16": True},
    "float16": {"fp16": True},
    "float8": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
    "mxfp8": {"bf16": True, "fp8_format": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4_format": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Megatron's arguments for the type of computation."""
