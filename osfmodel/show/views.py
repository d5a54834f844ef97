"""The views of nouns and results: their document, the rows of their table, a DataFrame, and HTML for notebooks.

Methods of :data:`osfmodel.entities.display.VIEWED` lead here, so that a noun, the command line and a page say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from osfmodel.diagnosis.comparing import RunComparison
from osfmodel.diagnosis.explanation import Explanation
from osfmodel.entities.cluster import Cluster
from osfmodel.entities.display import how_many
from osfmodel.entities.errors import UsageError
from osfmodel.entities.plan import Plan
from osfmodel.entities.workload import Workload
from osfmodel.planning.results import Comparison, Prediction, Tuning
from osfmodel.planning.scaling.curve import ScaleCurve
from osfmodel.planning.sweep.columns import FIELDS
from osfmodel.planning.sweep.results import Sweep
from osfmodel.show.documents.compare import Compared
from osfmodel.show.documents.explain import Explained
from osfmodel.show.documents.profiles import FileContent
from osfmodel.show.documents.results import Lines, Predicted, Tuned
from osfmodel.show.documents.scale import Scaled
from osfmodel.show.documents.sweep import Swept
from osfmodel.show.html.sheet import Sheet, listed_rows, sheet_html
from osfmodel.show.tables import explained
from osfmodel.show.tables.compared import lists
from osfmodel.show.tables.plans import OUTCOMES, PLANS, RATE, comparison_title, plan_rows, tuning_title
from osfmodel.show.tables.profiles import BUCKETS, LAYERS, bucket_rows, figure_columns, figures, layer_rows
from osfmodel.show.tables.scale import curve_title, told_columns
from osfmodel.show.tables.sweep import common_words, shown_columns


class View(NamedTuple):
    """The forms of a type of noun.

    result: (noun) -> the result of the command, which has its document and its rows
    sheet:  (noun) -> what people see of it
    keys:   of its rows, if there may be none
    """

    result: Callable[[Any], Any]
    sheet: Callable[[Any], Sheet]
    keys: Sequence[str] | None = None


def document(noun: Any) -> dict[str, Any]:
    """The JSON document of the noun, as the command line writes it."""
    found: dict[str, Any] = VIEWS[type(noun)].result(noun).document()
    return found


def records(noun: Any) -> list[dict[str, Any]]:
    """The rows of the noun's table, as the command line writes them to CSV."""
    found: list[dict[str, Any]] = VIEWS[type(noun)].result(noun).rows()
    return found


def frame(noun: Any) -> Any:
    """The rows as a pandas DataFrame. Raises UsageError without pandas."""
    try:
        import pandas
    except ImportError:
        raise UsageError("to_frame() needs pandas: pip install 'osfmodel[frames]'") from None
    return pandas.DataFrame(records(noun), columns=VIEWS[type(noun)].keys)


def html(noun: Any) -> str:
    """The noun as HTML."""
    return sheet_html(VIEWS[type(noun)].sheet(noun))


def _title(noun: Any) -> str:
    """The noun's repr, without its brackets."""
    return repr(noun)[1:-1]


def _workload(one: Workload) -> Sheet:
    return Sheet(_title(one), [listed_rows("", LAYERS, layer_rows(one))])


def _cluster(one: Cluster) -> Sheet:
    rows = figures(one)
    return Sheet(_title(one), [listed_rows("", figure_columns(rows), rows)])


def _plan(one: Plan) -> Sheet:
    return Sheet(_title(one), [listed_rows("", BUCKETS, bucket_rows(one))])


def _compared_plans(one: Comparison) -> Sheet:
    notes = dict.fromkeys(note for prediction in one.predictions for note in prediction.notes)
    columns = (*PLANS, RATE) if one.workload.batch_size else PLANS
    return Sheet(comparison_title(one), [listed_rows("", columns, plan_rows(one))], notes=list(notes))


def _tuning(one: Tuning) -> Sheet:
    table = listed_rows("", OUTCOMES, one.outcomes)
    code = one.rendered if one.improvement else ""
    return Sheet(tuning_title(one), [table], one.verdict, one.notes, code)


def _curve(one: ScaleCurve) -> Sheet:
    points = list(one.points)
    table = listed_rows("", told_columns(points), points)
    return Sheet(curve_title(one), [table], one.turns, [*one.warnings, *one.notes])


def _explanation(one: Explanation) -> Sheet:
    tables = [
        listed_rows("", explained.PARTS, explained.parts(one)),
        listed_rows("", explained.COSTS, explained.costs(one)),
        listed_rows("Ranks", explained.RANKS, explained.rank_rows(one) if len(one.ranks) > 1 else []),
        listed_rows("Collectives", explained.group_columns(one), one.collectives),
        listed_rows("Messages", explained.messages(one), one.buckets),
        listed_rows("Remedies", explained.REMEDIES, explained.helping(one.remedies)),
    ]
    notes = [*(words.removesuffix(".") for words in explained.others(one.remedies)), *one.remarks]
    return Sheet(f"{one.name}: {explained.title(one)}", tables, one.verdict, notes)


def _compared_runs(one: RunComparison) -> Sheet:
    sides = (", ".join(names) for names in (one.baselines, one.candidates))
    return Sheet(" -> ".join(sides), lists(one), one.sentence, one.remarks)


def _sweep(one: Sweep) -> Sheet:
    points = list(one)
    columns = shown_columns(points) if points else []
    common = common_words(points, columns) if points else ""
    title = f"{one.name}: {how_many(len(points), 'point')}"
    return Sheet(title + (f", {common}" if common else ""), [listed_rows("", columns, points)], notes=one.remarks)


def _tuned(one: Tuning) -> Tuned:
    return Tuned(one, Lines((), lambda ending: one.rendered), None if one.what_if.words else {})


def _alone(one: Prediction) -> Comparison:
    """The prediction as a comparison of one plan."""
    return one.subject.of([one])


VIEWS: Mapping[type, View] = {
    Workload: View(FileContent, _workload),
    Cluster: View(FileContent, _cluster),
    Plan: View(FileContent, _plan),
    Prediction: View(lambda one: Predicted([_alone(one)]), lambda one: _compared_plans(_alone(one))),
    Comparison: View(lambda one: Predicted([one]), _compared_plans),
    Tuning: View(_tuned, _tuning),
    ScaleCurve: View(Scaled, _curve),
    Explanation: View(Explained, _explanation),
    RunComparison: View(Compared, _compared_runs),
    Sweep: View(lambda one: Swept(one, {}, lambda: one), _sweep, tuple(FIELDS)),
}
"""The views of each type."""
