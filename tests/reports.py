"""Requests that several tests of pictures draw, and steps as a profiler would have seen them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any, TypeVar

import osfmodel as osf
from osfmodel.diagnosis import Explanation
from osfmodel.entities.files import usual_effects
from osfmodel.entities.trace import Collective, RankTrace, Step, Trace
from osfmodel.planning.gathering import ReportRequest
from osfmodel.show.report import Pictures, pictures
from tests.kept import gathered, judged
from tests.live.explained import paths_of

HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(2)> "'`&amp; ]]> <!-- {{x}}"""
"""A name that must not change a page."""


def drawn(
    workload: osf.Workload, cluster: osf.Cluster, workers: int, evidence: bool = False, **others: Any
) -> Pictures:
    """The pictures of a report, and with ``evidence`` those of the runs behind its error bands."""
    report = gathered(ReportRequest(workload, cluster, workers, **others))
    return pictures(report, judged(*report.sources) if evidence and report.sources else ())


def resnet50() -> Pictures:
    """Default and tuned DDP, and the stock plans; kept apart with usual effects and without (the fixture ``ideal``)."""
    return _resnet50(usual_effects.usual_values is tuple)


@cache
def _resnet50(ideal: bool) -> Pictures:
    return drawn(osf.load_workload("resnet50-v100"), osf.load_cluster("v100-10gbe"), 64)


def step(number: int = 3, start: float = 10.0, time: float = 0.14) -> Step:
    """Forward, backward, two collectives that overlap, of which the second outlasts backward, and an update."""
    compute = ((start, start + 0.03), (start + 0.03001, start + 0.09), (start + 0.13, start + 0.135))
    collectives = (
        Collective("all_reduce", start + 0.05, start + 0.08, start + 0.049, 1000, "float32"),
        Collective("all_reduce", start + 0.07, start + 0.13, start + 0.069, 2000, "float32"),
    )
    passes = {"forward": (start, start + 0.03), "backward": (start + 0.03001, start + 0.09)}
    return Step(number, start, start + time, compute, collectives, inputs=((start + 0.136, start + 0.14),), **passes)


def trace(name: str = "job") -> Trace:
    """Two ranks of three steps each; the second rank is slower."""
    ranks = [
        RankTrace(rank, tuple(step(n, 10.0 + n, 0.14 + 0.001 * n + 0.05 * rank) for n in range(3))) for rank in (0, 1)
    ]
    return Trace(name, tuple(ranks), ("sizes come from the host",))


def many(count: int = 400, name: str = "many", layer: str = "block{}.weight") -> osf.Workload:
    """A workload of so many tensors."""
    layers = [osf.Layer(layer.format(number), 1e-4, 2e-4, 4000 * (1 + number % 50)) for number in range(count)]
    return osf.Workload(name, tuple(layers), batch_size=8, update_time=1e-3)


Shown = TypeVar("Shown")


def curve(shown: Pictures, kind: type[Shown]) -> Shown:
    """The one of that type."""
    (found,) = [one for one in shown.curves if isinstance(one, kind)]
    return found


@cache
def hostile() -> Pictures:
    """200 tensors, names that would break out of a page, and a measured job beside the predictions."""
    workload = many(200, f"w {HOSTILE}", "{} " + HOSTILE)
    cluster = osf.load_cluster("ring:50us,10Gbps")
    request = ReportRequest(
        workload,
        osf.Cluster(f"c {HOSTILE}", cluster.cost_model, between_nodes=cluster.between_nodes),
        8,
        plans=("wfbp", "optimal"),
        traces=(trace(f"t {HOSTILE}"),),
        inputs=(("workload", HOSTILE),),
    )
    return pictures(gathered(request))


@cache
def explanation() -> Explanation:
    """An explanation of the traces of four ranks that send sixty small messages a step."""
    return osf.explain(paths_of("tiny-buckets"))


@cache
def hostile_explanation() -> Explanation:
    """The same with names that would break out of a page wherever a trace or a file gives one."""
    one = explanation()
    return replace(
        one,
        name=f"job {HOSTILE}",
        cluster=f"wires {HOSTILE}",
        verdict=f"{one.verdict} {HOSTILE}",
        buckets=tuple(replace(row, dtype=HOSTILE) for row in one.buckets),
        remedies=tuple(replace(remedy, what=f"{remedy.what} {HOSTILE}", note=HOSTILE) for remedy in one.remedies),
        remarks=(HOSTILE,),
    )


VOID = {"meta", "link", "br", "input"}


class Page(HTMLParser):
    """Counts of elements, attributes of each, and whether all that is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text, self.ids = [], [], [], Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.elements.append((tag, found))
        if "id" in found:
            self.ids[found["id"]] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def assert_fetches_nothing(text: str) -> None:
    """No element, attribute or style of a page that loads something, runs something or leads elsewhere."""
    for tag, attributes in Page(text).elements:
        assert tag not in {"img", "iframe", "object", "embed", "base", "form", "audio", "video"}
        assert not {"src", "srcset", "style", "action"} & set(attributes), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "data:,") == "data:,"
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", text)
