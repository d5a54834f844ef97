"""A configuration target: the row type of CONFIG_TARGETS and its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE, Cost
from osfmodel.entities.compression import types_of
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import ExecutorRow
from osfmodel.entities.modules import in_one_micro_batch
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.sharding import EACH, Form, Sharding
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import BUCKET_LIMITS, Case, Limits, PlanRule

Knobs = TypeVar("Knobs")
PLACEHOLDER_PRICES = Pricing.of(FREE, workers=2)
"""Placeholder prices, for calls that only need a plan's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Convert plans to a framework's knobs and back.

    The plan that we predict is always the one that the framework really forms, ``to_plan(from_plan(plan))``, not
    the solver's ideal; they differ wherever the knobs cannot express what the solver wants.

    default_knobs: () -> knobs                             the framework's defaults
    from_plan: (plan, workload, pricing, limits) -> knobs  the nearest knobs; PlanError if none come near
    to_plan:   (knobs, workload, pricing) -> plan          the plan that the framework forms with them
    exact:     (plan, workload) -> knobs                   those that form exactly this plan (for a framework with a
                                                           clock, except release times), else PlanError; for a
                                                           ``from_plan`` that is slow or gives others
    complete:  (knobs, workload, pricings, limits) -> knobs  with settings that only the final choice needs
    from_conditions: (conditions, workload) -> knobs       those of a measured run; None if its conditions give none
    unpriced:  whether the default plan needs no prices
    """

    default_knobs: Callable[[], Any]
    from_plan: Callable[[Plan, Workload, Pricing, Limits], Any]
    to_plan: Callable[[Any, Workload, Pricing], Plan]
    exact: Callable[[Plan, Workload], Any] | None = None
    complete: Callable[[Any, Workload, Sequence[Pricing], Limits], Any] = lambda knobs, workload, pricings, limits: (
        knobs
    )
    from_conditions: Callable[[Mapping[str, str], Workload], Any] | None = None
    unpriced: bool = False

    def default(self, workload: Workload, pricing: Pricing) -> Plan:
        """The plan that the framework forms with its default settings."""
        return self.to_plan(self.default_knobs(), workload, pricing)

    def forms(self, plan: Plan, workload: Workload) -> bool:
        """Whether some knobs make the framework form exactly this plan: buckets, order and, without a clock, times.

        How it accumulates over micro-batches does not count.
        """
        plan = in_one_micro_batch(plan)
        try:
            if self.exact is not None:
                self.exact(plan, workload)
                return True
            knobs = self.from_plan(plan, workload, PLACEHOLDER_PRICES, Limits())
        except PlanError:
            return False
        return self.to_plan(knobs, workload, PLACEHOLDER_PRICES) == plan


def in_types(reduced_in: str = "") -> Callable[..., Any]:
    """(knobs, workload, pricings, limits) -> knobs with the types of a workload in mixed precision: ``complete``.

    reduced_in: type of gradients; "" for that of computation
    """

    def complete(knobs: Any, workload: Workload, pricings: Sequence[Pricing], limits: Limits = Limits()) -> Any:
        stated = Sharding((), 1, knobs.gather_dtype, knobs.reduce_dtype)
        types = stated.typed(*types_of(workload, reduced_in or workload.computed_in))
        return replace(knobs, gather_dtype=types.gather_dtype, reduce_dtype=types.reduce_dtype)

    return complete


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A framework's way to add up gradients over several micro-batches and send them with the last.

    text:     (lines or file, its ending, micro-batches) -> the same with what accumulates
    forms:    of a framework that shards: the ways that it has, each with its ``text`` and a few words; the first is
              that of ``text``
    settings: (micro-batches) -> settings by their names; {} where only code does it
    note:     (micro-batches) -> a sentence on what the text leaves to the script, or ""
    """

    text: Callable[[str, str, int], str]
    settings: Callable[[int], dict[str, int]] = lambda count: {}
    note: Callable[[int], str] = lambda count: ""
    forms: Mapping[Form, tuple[Callable[[str, str, int], str], str]] = field(default_factory=dict)

    @property
    def form(self) -> Form:
        """The way that the framework takes unless told otherwise."""
        return next(iter(self.forms), EACH)


def _not_told(count: int) -> str:
    return f"these lines do not accumulate: add up the gradients of {count} micro-batches, and send them with the last"


NOT_TOLD = Accumulation(lambda text, ending, count: text, note=_not_told)
"""For frameworks whose target does not say how they accumulate."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Settings of a training job beside those of data parallelism.

    groups:        (kind, size) of a replica's groups of GPUs
    batch, whole:  samples of a micro-batch, and of a step of all replicas
    micro_batches: of a step
    sequence:      tokens of a sample; None where it has none
    checkpointing: of activations: none, selective or full
    blocks:        of the model; 0 if that is not known
    dtype, stack:  of computation, as in ``counting``: a type or a narrow recipe, and the software; "" for no settings
    overlap:       kind of a replica's groups whose messages overlap with products, as in ``counting``
    """

    groups: tuple[tuple[str, int], ...]
    batch: int
    whole: int
    micro_batches: int
    sequence: int | None
    checkpointing: str
    dtype: str = ""
    stack: str = ""
    blocks: int = 0
    overlap: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of groups by kind."""
        return dict(self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsText:
    """Knobs as text.

    config:  (knobs) -> JSON-ready dict
    render:  (knobs, workload) -> text   lines to paste
    ending:  of the name of a file with these lines; "" if the framework reads no such file
    files:   endings of other files of the framework's own -> (knobs, workload) -> text
    caveats: (workload) -> sentences     assumptions of a prediction for this framework
    accumulation: how gradients of several micro-batches are added up before they are sent
    in_job:  (knobs, JobSettings) -> knobs with the settings of a whole job; None if the lines have none
    offloads: kinds of OFFLOADED that the lines can say: knobs have a field ``offload`` for them
    """

    config: Callable[[Any], dict[str, Any]]
    render: Callable[[Any, Workload], str]
    ending: str = ".py"
    files: Mapping[str, Callable[[Any, Workload], str]] = field(default_factory=dict)
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    accumulation: Accumulation = NOT_TOLD
    in_job: Callable[[Any, JobSettings], Any] | None = None
    offloads: tuple[str, ...] = ()

    def offloading(self, knobs: Any, workload: Workload) -> tuple[Any, tuple[str, ...]]:
        """``knobs`` with what the workload has with the host, and sentences on what of that the lines cannot say."""
        kinds = () if workload.offload is None else workload.offload.kinds
        said = tuple(kind for kind in kinds if kind in self.offloads)
        missing = "+".join(kind for kind in kinds if kind not in said)
        note = f"these lines cannot say offload={missing}: the script must do that itself"
        return replace(knobs, offload=said) if said else knobs, (note,) if missing else ()

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of files that the framework reads, or to paste from."""
        return tuple(filter(None, (self.ending, *self.files)))

    def written(
        self, knobs: Any, workload: Workload, ending: str = "", micro_batches: int = 1, form: Form | None = None
    ) -> str:
        """The settings as a file with this ending has them, for steps of so many micro-batches; ``form``: see Form."""
        text = self.files.get(ending, self.render)(knobs, workload)
        if micro_batches == 1:
            return text
        accumulated, _ = self.accumulation.forms.get(form or self.accumulation.form, (self.accumulation.text, ""))
        return accumulated(text, ending or self.ending, micro_batches)

    def settings(self, config: Mapping[str, Any], micro_batches: int) -> dict[str, Any]:
        """``config`` of knobs, with the settings for steps of so many micro-batches."""
        return {**config, **(self.accumulation.settings(micro_batches) if micro_batches > 1 else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The start of a training script with the settings.

    launcher:  the program that starts the workers, in a sentence, if not torchrun
    arguments: (knobs) -> the script's command line arguments, if settings go there
    script:    any other way in which the script gets the settings, in a sentence; "" for lines to paste
    """

    launcher: str = ""
    arguments: Callable[[Any], str] = lambda knobs: ""
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSearch:
    """A search for knobs that no plan determines.

    find:       (cases, limits) -> (knobs or None, remarks)  those that do best in the worst of ``cases``, and
                                                             remarks on the search
    words:      (knobs) -> text                              the knobs in a few words
    reluctance: relative gain that a candidate with more demands (changed code) needs to be preferred
    """

    find: Callable[[Sequence[Case], Limits], tuple[Any, tuple[str, ...]]]
    words: Callable[[Any], str]
    reluctance: float = 0


@dataclass(frozen=True, slots=True)
class SizeKnob:
    """The one setting of a framework that limits all of its buckets.

    name:     the setting's name
    knobs:    (count) -> knobs                with all else as by default
    best:     (workload, cost) -> count       the best value if it can be computed, else None
    elements: whether it counts elements; bytes otherwise
    """

    name: str
    knobs: Callable[[int], Any]
    best: Callable[[Workload, Cost], int | None] = lambda workload, cost: None
    elements: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework whose knobs decide the plan.

    summary:    its default plan, in half a line
    convert:    plans to knobs and back
    text:       knobs as text
    launch:     start of a script with them
    search:     for knobs that no plan determines, if the framework has such
    size:       the setting that limits all buckets, if there is one
    executor:   the one that runs its plans, or whose prices it pays; None for a stock framework without a row
    objective:  the rules under which the framework works; an executor works under any
    rule:       the search for plans under its objective, where no solver searches under that
    executes:   whether it is an executor, which also knows several channels, cut tensors and no barrier
    live:       whether ``osf tune --live`` trains under it
    clock:      whether buckets are released by a clock of its own, so that a plan does not fix when
    compared:   whether its default is among the plans that are compared by default
    dialect_of: the target that does the work, if this one only writes its knobs in other lines
    limits:     options of the limits (``Limits.given``) within which it is tuned
    """

    summary: str
    convert: Conversion
    text: SettingsText
    launch: Launch = Launch()
    search: SettingsSearch | None = None
    size: SizeKnob | None = None
    executor: ExecutorRow | None = None
    objective: Objective = PLAIN
    rule: PlanRule | None = None
    executes: bool = False
    live: bool = False
    clock: bool = False
    compared: bool = False
    dialect_of: str = ""
    limits: tuple[str, ...] = BUCKET_LIMITS

    @property
    def script(self) -> str:
        """A sentence on train.py of a launch, and how it gets the settings if not by arguments."""
        lines = f" (-o lines{self.text.ending})" if self.text.ending else ""
        pasted = f"train.py is your script, with the lines that this command writes without --lines{lines}"
        return self.launch.script or pasted


def ignoring_prices(to_plan: Callable[[Any, Workload], Plan]) -> Callable[[Any, Workload, Pricing], Plan]:
    """A ``to_plan`` that ignores prices, for a framework that forms the same plan at any price."""
    return lambda knobs, workload, pricing: to_plan(knobs, workload)


def exact_or(
    exact: Callable[[Plan, Workload], Knobs], nearest: Callable[[Plan, Workload, Pricing, Limits], Knobs]
) -> Callable[..., Knobs]:
    """A ``from_plan`` that gives the knobs that form a plan exactly; if none do, the nearest ones."""

    def from_plan(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> Knobs:
        try:
            return exact(plan, workload)
        except PlanError:
            return nearest(plan, workload, pricing, limits)

    return from_plan


def require_plain(plan: Plan, workload: Workload, framework: str) -> None:
    """Raise PlanError for plans that need an executor: several channels, cut tensors, no barrier."""
    if not plan.plain:
        raise PlanError(
            f"{framework} runs one collective at a time, whole, before the update: this plan needs an executor"
        )
    plan.require_valid(workload)
    if not _whole(plan, workload):
        raise PlanError(f"{framework} sends whole tensors: this plan cuts some, which needs an executor")


def _whole(plan: Plan, workload: Workload) -> bool:
    return sum(len(bucket.blocks) for bucket in plan.buckets) == len(workload.gradients)


def lightning_accumulating(text: str, ending: str, count: int) -> str:
    """The lines with a Trainer that accumulates."""
    made = "Trainer(strategy=strategy"
    return text.replace(f"{made})", f"{made}, accumulate_grad_batches={count})")


LIGHTNING_ACCUMULATION = Accumulation(lightning_accumulating, lambda count: {"accumulate_grad_batches": count})
