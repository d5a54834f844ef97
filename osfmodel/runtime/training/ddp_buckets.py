"""A plan as arguments of PyTorch DDP, and the buckets that DDP formed according to its own log.

If DDP knows ``bucket_cap_mb_list`` (torch 2.13), the plan is its arguments. If not, a communication hook
collects DDP's one-tensor buckets into the planned messages, at the price of a copy.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from osfmodel.entities.errors import OsfError, PlanError
from osfmodel.entities.executors import FSDP, RUNTIME
from osfmodel.entities.modules import SHARDED, SHARDING
from osfmodel.entities.plan import Plan
from osfmodel.entities.records import dataclass, field
from osfmodel.entities.units import MIB
from osfmodel.entities.workload import Workload
from osfmodel.solve.caps import bucket_layout
from osfmodel.targets import CONFIG_TARGETS, ddp
from osfmodel.targets.ddp import single_cap


@dataclass(frozen=True, slots=True)
class Carried:
    """A plan to run: its ``label``; ``arguments`` are DDP's; ``hook``: by a communication hook.

    sent: the plan in one line if the executor runs it; "" for DDP
    """

    label: str
    plan: Plan
    arguments: dict[str, Any] = field(default_factory=dict)
    hook: bool = False
    sent: str = ""

    @property
    def by_default(self) -> bool:
        """Whether DDP forms this plan by default."""
        return not (self.arguments or self.hook or self.sent)

    @property
    def by(self) -> str:
        """The means that run it, in words."""
        if self.sent:
            return "the executor"
        return "a communication hook" if self.hook else ", ".join(self.arguments) or "the default"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each planned bucket."""
        return tuple(bucket.size for bucket in self.plan.buckets)


def carried(label: str, plan: Plan, workload: Workload, hook: bool | None = None) -> Carried:
    """``plan`` for DDP; ``hook`` None: by its arguments if they can express it.

    Raises PlanError, naming the plan and what to do, if DDP has no way to.
    """
    _require_possible(label, plan, workload)
    if CONFIG_TARGETS.get(label) is ddp.TARGET and not hook:
        return Carried(label, plan)
    cap = single_cap(label)
    if cap is not None and not hook:
        return Carried(label, plan, {"bucket_cap_mb": cap / MIB})
    if hook or (hook is None and not has_list()):
        _require_one_dtype(label, workload, asked=bool(hook))
        return Carried(label, plan, {"bucket_cap_mb": 1e-9}, hook=True)
    return Carried(label, plan, {"bucket_cap_mb_list": [limit / MIB for limit in _limits(plan, workload)]})


def _limits(plan: Plan, workload: Workload) -> tuple[int, ...]:
    """One cap per bucket.

    DDP applies the k-th cap to the k-th bucket of every dtype, so with several dtypes several lists are tried: the
    first that forms the plan's bucket sizes, else the first.
    """
    kinds = dict(zip(workload.gradients.names, workload.gradients.dtypes, strict=True))
    rows: dict[str, list[int]] = {}
    for bucket in plan.buckets:
        rows.setdefault(kinds[bucket.blocks[0].layer], []).append(bucket.size)
    if len(rows) == 1:
        return tuple(*rows.values())
    places = [[row[k] for row in rows.values() if k < len(row)] for k in range(max(map(len, rows.values())))]
    tries = [tuple(map(min, places)), tuple(map(max, places)), *map(tuple, rows.values())]
    wanted = sorted(bucket.size for bucket in plan.buckets)
    return next((limits for limits in tries if _sizes(limits, workload) == wanted), tries[0])


def _sizes(limits: tuple[int, ...], workload: Workload) -> list[int]:
    sizes = workload.gradients.sizes
    return sorted(sum(sizes[i] for i in group) for group in bucket_layout(workload.gradients, limits))


def has_list() -> bool:
    """Whether the installed DDP takes a limit for each bucket."""
    from torch.nn.parallel import DistributedDataParallel

    return "bucket_cap_mb_list" in inspect.signature(DistributedDataParallel.__init__).parameters


def _one_dtype(workload: Workload) -> bool:
    return len(set(workload.gradients.dtypes)) < 2


def _require_one_dtype(label: str, workload: Workload, asked: bool) -> None:
    """Raise PlanError for several dtypes: by hook if that was ``asked`` for, else as DDP has no list of caps."""
    if _one_dtype(workload):
        return
    if asked:
        why = "the communication hook works with one dtype only: leave --comm-hook out"
    else:
        why = "several dtypes need DDP's bucket_cap_mb_list: install PyTorch 2.13 or newer"
    raise PlanError(f"plan {label!r}: {why}")


def _require_possible(label: str, plan: Plan, workload: Workload) -> None:
    wants = list(plan.wants.values())
    if any(bucket.release_time for bucket in plan.buckets):
        wants.append("a clock that releases buckets, as Horovod has")
    if sum(len(bucket.blocks) for bucket in plan.buckets) != len(workload.gradients):
        wants.append("tensors cut in pieces")
    instead = "run what `osf tune --for ddp` proposes, or --plan optimal"
    grouped = plan.strategy in SHARDED
    able = FSDP if grouped else RUNTIME
    anyway = f"--executor {able.name} can, or {instead}"
    if wants:
        beyond = plan.credit is not None or any(bucket.release_time for bucket in plan.buckets)
        beyond = beyond or (plan.strategy in SHARDING and not grouped)
        remedy = instead if beyond else anyway
        raise PlanError(f"DDP cannot run plan {label!r}, which wants {' and '.join(wants)}: {remedy}")
    try:
        plan.require_valid(workload)
    except OsfError as error:
        raise PlanError(f"DDP cannot run plan {label!r}: {error}; {instead}") from None
    if _one_dtype(workload) and not ddp.TARGET.convert.forms(plan, workload):
        order = "which sends tensors out of ready order"
        raise PlanError(f"DDP cannot run plan {label!r}, {order}: {anyway}")


class Messages:
    """A communication hook: DDP's buckets, each one tensor, become the planned messages. ``sent``: the last sizes.

    In the first iteration DDP has other buckets (the whole model in one); all planned messages that are complete go
    together then.
    """

    def __init__(self, sizes: Sequence[int], world: int) -> None:
        self.ends, self.world = tuple(accumulate(sizes)), world
        self.sent: list[int] = []
        self._open: list[tuple[Any, Any]] = []
        self._before, self._held = 0, 0

    def __call__(self, state: object, bucket: Any) -> Any:
        """DDP's communication hook: a future of the bucket's mean."""
        import torch

        buffer = bucket.buffer()
        if not self._open and not self._before:
            self.sent = []
        devices = [buffer.device] if buffer.is_cuda else None
        future = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        self._open.append((buffer, future))
        self._held += buffer.numel() * buffer.element_size()
        if bucket.is_last() or self._before + self._held in self.ends:
            self._send()
        if bucket.is_last():
            self._before = 0
        return future

    def _send(self) -> None:
        import torch
        import torch.distributed as dist

        group, self._open = self._open, []
        self.sent.append(self._held)
        self._before, self._held = self._before + self._held, 0
        flat = torch.cat([buffer for buffer, _ in group]).div_(self.world)

        def arrived(done: Any) -> None:
            done.wait()
            for part, (_, future) in zip(flat.split([buffer.numel() for buffer, _ in group]), group, strict=True):
                future.set_result(part)

        dist.all_reduce(flat, async_op=True).get_future().then(arrived)


@dataclass(frozen=True, slots=True)
class Formed:
    """The buckets that DDP formed: bytes of each, and the positions of their parameters (() if it does not say).

    ``rebuilt``: whether it formed them anew in ready order.
    """

    sizes: tuple[int, ...]
    members: tuple[tuple[int, ...], ...] = ()
    rebuilt: bool = True


def formed_by(model: Any, messages: Messages | None) -> Formed:
    """The buckets from DDP's own log after some iterations, or those that the hook sent."""
    log = model._get_ddp_logging_data()
    rebuilt = bool(log.get("has_rebuilt_buckets"))
    if messages is not None:
        return Formed(tuple(messages.sent), rebuilt=rebuilt)
    text = log["rebuilt_bucket_sizes" if rebuilt else "bucket_sizes"]
    members = log.get("rebuilt_per_bucket_param_indices", "") if rebuilt else ""
    groups = tuple(tuple(map(int, group.split())) for group in members.split(",") if group.strip())
    return Formed(tuple(int(size) for size in text.split(",")), groups, rebuilt)


def deviation(planned: Carried, formed: Formed, names: Sequence[str], workload: Workload) -> str:
    """The difference of the buckets formed from those planned, with its reason; "" if there is none.

    ``names`` are those of the model's parameters in their order.
    """
    layers = [{block.layer for block in bucket.blocks} for bucket in planned.plan.buckets]
    ordered = sorted if not _one_dtype(workload) else list  # DDP leaves open which dtype's last bucket comes first
    same = ordered(formed.sizes) == ordered(planned.sizes)
    if same and _one_dtype(workload) and formed.members and set().union(*layers) == set(names):
        same = [{names[i] for i in group} for group in formed.members] == layers
    if same and (formed.rebuilt or len(planned.sizes) < 2):
        return ""
    counts = f"{len(formed.sizes)} buckets that are not the {len(planned.sizes)} planned"
    return f"DDP formed {counts}: {_why(formed, workload)}"


def _why(formed: Formed, workload: Workload) -> str:
    if not formed.rebuilt:
        return (
            "it did not rebuild them in ready order, as with find_unused_parameters and without static_graph, or where "
            "not every parameter gets a gradient"
        )
    if not _one_dtype(workload):
        return "the gradients have several dtypes, each of which DDP walks by itself with the same limits"
    return (
        "the gradients became ready in an order or with sizes different from the workload's (torch.compile does "
        "that): profile the model as it is run"
    )
