"""What a configuration target is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from osfmodel.cost import Cost
from osfmodel.cost.pricing import Pricing
from osfmodel.cost.shapes import FREE
from osfmodel.entities.errors import PlanError
from osfmodel.entities.executors import ExecutorRow
from osfmodel.entities.plan import PLAIN, Objective, Plan
from osfmodel.entities.workload import Workload
from osfmodel.solve import Case, Limits

Knobs = TypeVar("Knobs")


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

    The plan that we predict is always the one that the framework will really form, ``realise(project(plan))``, not
    the solver's ideal; they differ wherever the knobs cannot say what the solver wants.

    meaning:       what its default plan is, in half a line
    default_knobs: () -> knobs                             what the framework does when nobody sets anything
    project:       (plan, workload, pricing, limits) -> knobs  the knobs that come closest; PlanError where none can
    realise:       (knobs, workload, pricing) -> plan      what the framework does with them
    config:        (knobs) -> JSON-ready dict
    render:        (knobs, workload) -> text               lines to paste
    ending:        of the name of a file with these lines; "" where they are none that the framework reads
    files:         endings of other files of the framework's own -> (knobs, workload) -> text
    complete:      (knobs, workload, pricing, limits) -> knobs  adds what only the final choice needs
    caveats:       (workload) -> sentences                 what a prediction for this framework takes for granted
    exact:         (plan, workload) -> knobs               those that form exactly this plan, with a clock of its own
                                                           but for release times, else PlanError; for a ``project``
                                                           that takes long or gives others
    search:        (cases, limits) -> (knobs or None, remarks)  those that do best in the worst of ``cases``, where no
                                                           plan says them, and what there is to say of the search
    words:         (knobs) -> text                         in a few words, for a target with a search
    reluctance:    by how much a candidate that asks for more (changed code) must be better, relative
    executor:      that carries its plans out, or whose prices it pays; None for a stock framework that has no row
    stated:        (conditions, workload) -> knobs         that a run states; None where it does not state them
    clock:         whether buckets are released by a clock of its own, so that a plan does not fix when
    executes:      whether it is an executor, which also knows several channels, cut tensors and no barrier
    live:          whether ``osf tune --live`` trains under it
    objective:     the rules under which the framework works; an executor works under any
    dialect_of:    the target that does the work, where this one only has other lines for its knobs
    compared:      whether its default is among the plans that are compared where nobody names any
    unpriced:      whether what its default does can be carried out without knowing what a message costs
    size:          the setting that limits all messages, where there is one
    launcher:      what starts its workers, in a sentence, where torchrun does not, and how they come by the settings
    arguments:     (knobs) -> what is given to the training script on its command line, where settings go there
    beside:        how else the training script comes by the settings, in a sentence; where nothing is said, by a file
                   of lines that ends in ``ending``
    """

    meaning: str
    default_knobs: Callable[[], Any]
    project: Callable[[Plan, Workload, Pricing, Limits], Any]
    realise: Callable[[Any, Workload, Pricing], Plan]
    config: Callable[[Any], dict[str, Any]]
    render: Callable[[Any, Workload], str]
    ending: str = ".py"
    files: Mapping[str, Callable[[Any, Workload], str]] = field(default_factory=dict)
    complete: Callable[[Any, Workload, Pricing, Limits], Any] = lambda knobs, workload, pricing, limits: knobs
    caveats: Callable[[Workload], tuple[str, ...]] = lambda workload: ()
    exact: Callable[[Plan, Workload], Any] | None = None
    search: Callable[[Sequence[Case], Limits], tuple[Any, tuple[str, ...]]] | None = None
    words: Callable[[Any], str] = str
    reluctance: float = 0
    executor: ExecutorRow | None = None
    stated: Callable[[Mapping[str, str], Workload], Any] | None = None
    clock: bool = False
    executes: bool = False
    live: bool = False
    objective: Objective = PLAIN
    dialect_of: str = ""
    compared: bool = False
    unpriced: bool = False
    size: SizeKnob | None = None
    launcher: str = ""
    arguments: Callable[[Any], str] = lambda knobs: ""
    beside: str = ""

    @property
    def script(self) -> str:
        """What train.py of a launch is and how else than by arguments it comes by the settings, in a sentence."""
        lines = f" (-o lines{self.ending})" if self.ending else ""
        said = f"train.py is your script, with the lines that this command writes without --lines{lines}"
        return self.beside or said

    @property
    def endings(self) -> tuple[str, ...]:
        """Of files that the framework reads, or that are pasted from."""
        return tuple(filter(None, (self.ending, *self.files)))

    def written(self, knobs: Any, workload: Workload, ending: str) -> str:
        """The settings as they stand in a file whose name ends so."""
        return self.files.get(ending, self.render)(knobs, workload)

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


UNPRICED = Pricing.of(FREE, workers=2)
"""What plans cost where only their form is asked for."""


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
