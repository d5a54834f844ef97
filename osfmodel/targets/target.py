"""A configuration target, as the few small records that describe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE, Cost
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import ExecutorRow
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.workload import Workload
from osfmodel.solve.solution import Case, Limits

Knobs = TypeVar("Knobs")
UNPRICED = Pricing.of(FREE, workers=2)
"""Placeholder prices, for calls that only need a plan's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """From plans to a framework's knobs and back.

    The plan that we predict is always the one that the framework will really form, ``realise(project(plan))``, not
    the solver's ideal; they differ wherever the knobs cannot say what the solver wants.

    default_knobs: () -> knobs                         what the framework does when nobody sets anything
    project:  (plan, workload, pricing, limits) -> knobs  the knobs that come closest; PlanError where none can
    realise:  (knobs, workload, pricing) -> plan       what the framework does with them
    exact:    (plan, workload) -> knobs                those that form exactly this plan, with a clock of its own but
                                                       for release times, else PlanError; for a ``project`` that takes
                                                       long or gives others
    complete: (knobs, workload, pricing, limits) -> knobs  adds what only the final choice needs
    stated:   (conditions, workload) -> knobs          that a run states; None where it does not state them
    unpriced: whether the default can be carried out without knowing what a message costs
    """

    default_knobs: Callable[[], Any]
    project: Callable[[Plan, Workload, Pricing, Limits], Any]
    realise: Callable[[Any, Workload, Pricing], Plan]
    exact: Callable[[Plan, Workload], Any] | None = None
    complete: Callable[[Any, Workload, Pricing, Limits], Any] = lambda knobs, workload, pricing, limits: knobs
    stated: Callable[[Mapping[str, str], Workload], Any] | None = None
    unpriced: bool = False

    def default(self, workload: Workload, pricing: Pricing) -> Plan:
        """The plan that the framework forms when nobody sets anything."""
        return self.realise(self.default_knobs(), workload, pricing)

    def forms(self, plan: Plan, workload: Workload) -> bool:
        """Whether some knobs make the framework form exactly this plan: buckets, order and, without a clock, times."""
        try:
            if self.exact is not None:
                self.exact(plan, workload)
                return True
            knobs = self.project(plan, workload, UNPRICED, Limits())
        except PlanError:
            return False
        return self.realise(knobs, workload, UNPRICED) == plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsText:
    """Knobs as text.

    config:  (knobs) -> JSON-ready dict
    render:  (knobs, workload) -> text   lines to paste
    ending:  of the name of a file with these lines; "" where they are none that the framework reads
    files:   endings of other files of the framework's own -> (knobs, workload) -> text
    caveats: (workload) -> sentences     what a prediction for this framework takes for granted
    """

    config: Callable[[Any], dict[str, Any]]
    render: Callable[[Any, Workload], str]
    ending: str = ".py"
    files: Mapping[str, Callable[[Any, Workload], str]] = field(default_factory=dict)
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()

    @property
    def endings(self) -> tuple[str, ...]:
        """Endings of files that the framework reads, or that are pasted from."""
        return tuple(filter(None, (self.ending, *self.files)))

    def written(self, knobs: Any, workload: Workload, ending: str) -> str:
        """The settings as they stand in a file whose name ends so."""
        return self.files.get(ending, self.render)(knobs, workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a training script is started with the settings.

    launcher:  the program that starts the workers, in a sentence, where torchrun does not
    arguments: (knobs) -> what is given to the script on its command line, where settings go there
    script:    how else the script comes by the settings, in a sentence; "" where by the lines to paste
    """

    launcher: str = ""
    arguments: Callable[[Any], str] = lambda knobs: ""
    script: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSearch:
    """A search for knobs that no plan says.

    find:       (cases, limits) -> (knobs or None, remarks)  those that do best in the worst of ``cases``, and what
                                                             there is to say of the search
    words:      (knobs) -> text                              in a few words
    reluctance: by how much a candidate that asks for more (changed code) must be better, relative
    """

    find: Callable[[Sequence[Case], Limits], tuple[Any, tuple[str, ...]]]
    words: Callable[[Any], str]
    reluctance: float = 0


@dataclass(frozen=True, slots=True)
class SizeKnob:
    """The one setting of a framework that limits all of its messages.

    name:     what users set
    knobs:    (count) -> knobs                the others as they are by default
    best:     (workload, cost) -> count       that is known to do best, where it can be said; None where none does
    elements: whether it counts elements; bytes otherwise
    """

    name: str
    knobs: Callable[[int], Any]
    best: Callable[[Workload, Cost], int | None] = lambda workload, cost: None
    elements: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A framework whose knobs decide the plan.

    meaning:    its default plan, in half a line
    convert:    plans to knobs and back
    text:       knobs as text
    launch:     how a script is started with them
    search:     for knobs that no plan says, where the framework has such
    size:       the setting that limits all messages, where there is one
    executor:   that carries its plans out, or whose prices it pays; None for a stock framework that has no row
    objective:  the rules under which the framework works; an executor works under any
    executes:   whether it is an executor, which also knows several channels, cut tensors and no barrier
    live:       whether ``osf tune --live`` trains under it
    clock:      whether buckets are released by a clock of its own, so that a plan does not fix when
    compared:   whether its default is among the plans that are compared where nobody names any
    dialect_of: the target that does the work, where this one only has other lines for its knobs
    """

    meaning: str
    convert: Conversion
    text: SettingsText
    launch: Launch = Launch()
    search: SettingsSearch | None = None
    size: SizeKnob | None = None
    executor: ExecutorRow | None = None
    objective: Objective = PLAIN
    executes: bool = False
    live: bool = False
    clock: bool = False
    compared: bool = False
    dialect_of: str = ""

    @property
    def script(self) -> str:
        """What train.py of a launch is and how else than by arguments it comes by the settings, in a sentence."""
        lines = f" (-o lines{self.text.ending})" if self.text.ending else ""
        pasted = f"train.py is your script, with the lines that this command writes without --lines{lines}"
        return self.launch.script or pasted


def whatever_it_costs(realise: Callable[[Any, Workload], Plan]) -> Callable[[Any, Workload, Pricing], Plan]:
    """For a framework that forms the same plan at any price."""
    return lambda knobs, workload, pricing: realise(knobs, workload)


def exact_or(
    exact: Callable[[Plan, Workload], Knobs], nearest: Callable[[Plan, Workload, Pricing, Limits], Knobs]
) -> Callable[..., Knobs]:
    """A ``project`` that gives the knobs that form a plan exactly; where none do, the nearest ones."""

    def project(plan: Plan, workload: Workload, pricing: Pricing, limits: Limits = Limits()) -> Knobs:
        try:
            return exact(plan, workload)
        except PlanError:
            return nearest(plan, workload, pricing, limits)

    return project


def require_plain(plan: Plan, workload: Workload, framework: str) -> None:
    """Raise PlanError for what no framework without an executor does: several channels, cut tensors, no barrier."""
    if not plan.plain:
        raise PlanError(
            f"{framework} runs one collective at a time, whole, before the update: this plan needs an executor"
        )
    plan.require_valid(workload)
    if not _whole(plan, workload):
        raise PlanError(f"{framework} sends whole tensors: this plan cuts some, which needs an executor")


def _whole(plan: Plan, workload: Workload) -> bool:
    return sum(len(bucket.blocks) for bucket in plan.buckets) == len(workload.gradients)
