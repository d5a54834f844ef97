"""Settings of frameworks and named plans, each turned into a plan and back.

To add one: a module with a TARGET and one line here; from another package, an entry point of ``osfmodel.targets``. Its
default knobs are also a named plan of ``osf predict`` (except for a dialect, which writes another target's knobs in
other lines), and tests/conformance runs over the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

from osfmodel.entities.errors import UsageError
from osfmodel.entities.lookup import LateTable, letters
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import MEMORY, Limits
from osfmodel.targets.target import Target

__all__ = [
    "ALIASES", "CONFIG_TARGETS", "SPELLINGS", "Target", "is_stock", "no_memory", "require_taken", "runs_on",
    "spelt", "stock_targets", "target_name",
]  # fmt: skip

CONFIG_TARGETS: LateTable[Target] = LateTable(
    {
        "ddp": "targets.ddp:TARGET",
        "horovod": "targets.horovod:TARGET",
        "accelerate": "targets.ddp_dialects:ACCELERATE",
        "lightning": "targets.ddp_dialects:LIGHTNING",
        "deepspeed": "targets.deepspeed:TARGET",
        "zero-2": "targets.deepspeed:SECOND",
        "zero-3": "targets.zero_3:TARGET",
        "megatron": "targets.megatron:TARGET",
        "distributed-optimizer": "targets.megatron:SHARDED",
        "byteps": "targets.byteps:TARGET",
        "fsdp2": "targets.fsdp2:TARGET",
        "hsdp": "targets.fsdp2:HYBRID",
        "fsdp1": "targets.fsdp1:TARGET",
        "fsdp1-accelerate": "targets.fsdp1:IN_ACCELERATE",
        "fsdp1-lightning": "targets.fsdp1:IN_LIGHTNING",
        "torchtitan": "targets.torchtitan:TARGET",
        "runtime": "targets.executor:TARGET",
    },
    "osfmodel.targets",
    Target,
)

ALIASES: Mapping[str, str] = MappingProxyType({"zero-1": "deepspeed"})
"""Other names of targets: those of their plans."""
SPELLINGS: Mapping[str, str] = MappingProxyType(
    {
        spelling: name
        for name, spellings in {
            "ddp": "zero0 stage0 noshard distributeddataparallel torchddp pytorchddp pytorch "
            "ddpfindunusedparameterstrue ddpfindunusedparametersfalse ddpspawn ddpnotebook ddpfork multigpu",
            "zero-1": "zero1 stage1 ddpzero1 zerodp1",
            "zero-2": "zero2 stage2 ddpzero2 zerodp2",
            "zero-3": "zero3 stage3 ddpzero3 zerodp3",
            "fsdp2": "fsdp fullyshard fullshard torchfsdp pytorchfsdp fsdpnative dpshard dataparallelshard",
            "fsdp2:keep": "shardgradop fsdpzero2",
            "hsdp": "hybridshard hybridfsdp",
            "hsdp:keep": "hybridshardzero2",
            "distributed-optimizer": "usedistributedoptimizer distopt",
            "megatron": "megatronlm nemo megatroncore megatronbridge",
            "accelerate": "huggingface trainer",
            "lightning": "pytorchlightning",
        }.items()
        for spelling in spellings.split()
    }
)
"""Plans and targets by what frameworks and people call them: in lower case, letters and digits alone."""
FRAMEWORK_PREFIXES = ("deepspeed", "zero", "shardingstrategy")
"""Words before a name: ``deepspeed_stage_3``, ``zero_stage_2``, ``ShardingStrategy.FULL_SHARD``."""


def spelt(name: str, known: Iterable[str]) -> str:
    """The name, out of ``known`` or SPELLINGS, that ``name`` spells in another way; ``name`` itself without one.

    Behind a colon the parameters of a family of plans stay: ``fsdp:keep`` is ``fsdp2:keep``.

    >>> spelt("zero_3", ["zero-3"]), spelt("DeepSpeed_stage_2", []), spelt("FULL_SHARD", [])
    ('zero-3', 'zero-2', 'fsdp2')
    """
    first, colon, parameters = name.partition(":")
    short = letters(first)
    names = {letters(one): one for one in known if ":" not in one}
    forms = [short, *(short.removeprefix(prefix) for prefix in FRAMEWORK_PREFIXES if short.startswith(prefix))]
    found = next((names.get(form) or SPELLINGS[form] for form in forms if form in names or form in SPELLINGS), first)
    separator = "," if colon and ":" in found else colon
    return f"{found}{separator}{parameters}"


def target_name(name: str) -> str:
    """The key of CONFIG_TARGETS that ``name`` spells; ``name`` itself if there is none."""
    found = spelt(name, CONFIG_TARGETS).partition(":")[0]
    return ALIASES.get(found, found)


def require_taken(limits: Limits, name: str) -> None:
    """Raise UsageError for limits within which the target cannot be tuned."""
    taken = CONFIG_TARGETS[name].limits
    for option in limits.given:
        if option == MEMORY and option not in taken:
            raise UsageError(no_memory(name))
        if option not in taken:
            known = f"it takes {' and '.join(taken)}" if taken else "leave it out"
            raise UsageError(f"{option} does not work with --for {name}: {known}")


def no_memory(name: str) -> str:
    """A message that --memory does not work with a target, with those that it works with."""
    able = [one for one, target in CONFIG_TARGETS.items() if target.executes or MEMORY in target.limits]
    return f"--memory works with --for {', '.join(able)} or any, not with {name}"


@cache
def stock_targets() -> dict[str, Target]:
    """Targets of stock frameworks with a rule of their own; their defaults are named plans."""
    return {name: one for name, one in CONFIG_TARGETS.items() if is_stock(one)}


def is_stock(target: Target) -> bool:
    """Whether a target is a stock framework with a rule of its own, so that its default is a named plan."""
    return not target.executes and not target.dialect_of


def runs_on(plan: Plan, workload: Workload) -> tuple[str, ...]:
    """The stock frameworks that can be set to run exactly this plan; empty if it needs an executor."""
    return tuple(name for name, target in stock_targets().items() if target.convert.forms(plan, workload))
