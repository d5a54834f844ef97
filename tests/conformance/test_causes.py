"""Rules for every cause and every remedy: the tests run over their tables."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

import osfmodel as osf
from osfmodel.diagnosis import CAUSES, COMPUTE, Remedy, sentences
from osfmodel.diagnosis.causes import label_of, sentence
from osfmodel.diagnosis.explain_trace import explain_trace
from osfmodel.diagnosis.replay import Replays, StartupShare
from osfmodel.diagnosis.scene import SeenStep
from osfmodel.planning import remedies
from osfmodel.planning.remedies import REMEDIES, Measure
from tests.jobs import PLANTED, Job, trace_of
from tests.sharded_jobs import ShardedJob

GRAIN = 1e-9
"""Seconds by which sums of floats may differ."""


def test_every_cause_has_a_job_that_it_limits():
    assert set(PLANTED) == {*CAUSES, COMPUTE}


@cache
def explained(cause, device="cpu", **ahead):
    """The explanation of the job that a cause limits."""
    trace = trace_of(replace(PLANTED[cause], **ahead))
    return explain_trace(replace(trace, ranks=tuple(replace(rank, device=device) for rank in trace.ranks)))


@pytest.mark.covering
@pytest.mark.parametrize("ahead", [{}, {"device": "GPU", "lead": 5.0, "backend": "nccl"}], ids=["cpu", "gpu"])
@pytest.mark.parametrize("cause", PLANTED)
def test_the_planted_cause_is_named(cause, ahead):
    """A host ahead of its device is no exception."""
    found = explained(cause, **ahead)
    assert found.cause == cause
    assert found.verdict.count(". ") == 0  # one sentence
    assert (found.straggler == 1) == (cause != COMPUTE and CAUSES[cause].of_rank)
    if cause != COMPUTE:
        assert (found.network == cause) == CAUSES[cause].of_network


def replayed(replays: Replays) -> list[float]:
    """Seconds of the step as traced, and without the first, the first two ... causes."""
    return [replays.traced.duration, *(cause.without(replays).duration for cause in CAUSES.values())]


def _startup_share_of(job: Job) -> StartupShare:
    """As the job was made up."""
    return lambda size: job.latency / (job.latency + job.per_byte * size)


@pytest.mark.parametrize("job", PLANTED)
def test_a_step_is_never_longer_without_a_cause(job):
    """Replays are monotone before results are cut off at 0."""
    trace = trace_of(PLANTED[job])
    for steps in zip(*(rank.steps for rank in trace.ranks), strict=True):
        times = replayed(Replays([SeenStep.of(step, True) for step in steps], _startup_share_of(PLANTED[job])))
        longer = [name for name, (before, after) in zip(CAUSES, pairwise(times), strict=True) if after > before + GRAIN]
        assert longer == [], times


@pytest.mark.parametrize("name", CAUSES)
def test_it_is_described(name):
    cause = CAUSES[name]
    found = explained(name)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert re.fullmatch(r"[a-z].*[^.]", cause.summary)
    cost = sentences.what_it_costs(found, found.gains[name])
    said = sentence(found, name)
    assert re.fullmatch(rf"{label_of(name).capitalize()}: [^A-Z].* {re.escape(cost)}.*\.", said)
    assert cause.remedy is None or all(cause.remedy)


def test_remedies_have_names_of_their_own():
    names = [*(cause.remedy[0] for cause in CAUSES.values() if cause.remedy), *REMEDIES]
    assert sorted(names) == sorted(set(names))
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", name) for name in names)


FOUR = replace(PLANTED["bandwidth"], slowness=(1.0,) * 4, stalls=(0.0,) * 4)
"""Four workers of DDP."""


def _listed(job: Job | ShardedJob) -> dict[str, Remedy]:
    """The remedies for a job in a stated network, by name."""
    return {one.name: one for one in osf.explain(trace_of(job), osf.load_cluster("ring:100us,1Gbps")).remedies}


def test_every_remedy_is_listed_and_described():
    """For a job that it applies to, of DDP or sharded; one without a price says why."""
    found = _listed(PLANTED["gathered-twice"]) | _listed(FOUR)
    assert set(REMEDIES) <= set(found)
    for name in REMEDIES:
        assert found[name].what
        assert "{" not in found[name].what
        assert found[name].step_time or found[name].note.startswith("not priced: ")
    assert "workers-half" not in {one.name for one in osf.explain(trace_of(PLANTED["bandwidth"])).remedies}


def test_a_remedy_says_itself_whether_it_applies_to_sharded_jobs(monkeypatch):
    more = {
        name: Measure(lambda job: "nothing", lambda job: (job.measured, ""), applies=applies)
        for name, applies in {"any": lambda job: True, "sharded": lambda job: job.sharded}.items()
    }
    monkeypatch.setattr(remedies, "REMEDIES", more)
    assert more.keys() & _listed(PLANTED["gathered-twice"]).keys() == {"any", "sharded"}
    assert more.keys() & _listed(FOUR).keys() == {"any"}


def test_a_remedy_gains_by_itself_what_another_cause_hides():
    """Backward waits for all-gathers behind a reduce-scatter: without them it waits for neither."""
    found = explain_trace(trace_of(PLANTED["one-communicator"]))
    assert set(found.alone) == {name for name, cause in CAUSES.items() if cause.by_itself}
    assert found.saved("gathered-twice") > 2 * found.gains["gathered-twice"]


@pytest.mark.parametrize("name", [name for name, cause in CAUSES.items() if cause.needs_all_ranks])
def test_what_needs_all_ranks_costs_nothing_seen_from_one(name):
    found = explain_trace(trace_of(replace(PLANTED[name], traced=(1,))))
    assert found.gains[name] == 0.0
    assert sum(found.gains.values()) + found.left == pytest.approx(found.replayed)
