"""A sweep as a page and as a picture: whole, escaped, sorted and filtered in a real browser."""

from __future__ import annotations

import base64
import hashlib
import random
import re
from collections import Counter

import pytest
from rich.console import Console

from osfmodel.planning.sweep import DEFAULTS, KEYS
from osfmodel.planning.sweep.results import Sweep, condition, frontier
from osfmodel.show import picture as plotting
from osfmodel.show.sweep import Swept
from osfmodel.show.sweep.page import PRINTED, sweep_page
from osfmodel.show.sweep.points import MOST, axes_of, counts_shown, points_of, show_cloud, tick_texts
from tests.browser import assert_quiet
from tests.commands import invoke
from tests.conftest import ROOT
from tests.reports import HOSTILE, Page, assert_fetches_nothing

WIDTHS = (390, 1366)


def record(number, **others):
    """A point with a step between microseconds and minutes, so that its text does not sort as its number."""
    step = random.Random(number).choice([3e-5, 2e-3, 0.104, 5.85, 97.3]) * (1 + number / 1e4)
    workers = 8 << number % 4
    values = dict.fromkeys(KEYS) | DEFAULTS
    values |= {"point": number, "workload": "w", "cluster": ("one", "two", "three")[number % 3], "workers": workers}
    values |= {"plan": ("ddp", "optimal")[number % 2], "step_time_s": step, "low_s": 0.9 * step, "high_s": 1.2 * step}
    values |= {"samples_per_s": 32 * workers / step, "cost": step / workers, "cost_of": "million samples"}
    return {**values, "command": f"osf scale {number}", **others}


def failed(number):
    return (
        record(number) | dict.fromkeys(KEYS[KEYS.index("step_time_s") :]) | {"error": f"no prices at {number} workers"}
    )


def shown(records, best=(), where="", influences=None, name="grid.yaml"):
    holds, found = condition(where), Sweep(name, None, records)
    asked = {**({"where": where} if where else {}), **({"best": list(best)} if best else {})}

    def points():
        return frontier(found, best, holds) if best else filter(holds, found)

    return points_of(Swept(found, asked, points, influences), holds)


def some():
    return [*map(record, range(30)), failed(30)]


def test_the_page_is_whole_and_fetches_nothing():
    text = sweep_page(shown(some(), ["samples_per_s", "cost"], "workers <= 32"), "osf sweep grid.yaml", "1.2.3")
    found = Page(text)
    assert found.open == []
    assert max(found.ids.values()) == 1
    assert text == sweep_page(shown(some(), ["samples_per_s", "cost"], "workers <= 32"), "osf sweep grid.yaml", "1.2.3")
    assert_fetches_nothing(text)
    words = " ".join(found.text)
    asked = sum(one["workers"] <= 32 for one in some())
    assert "Asked: points where workers <= 32; best in samples_per_s and cost" in words
    assert f"31 points, 1 without a prediction. {asked} under the condition." in words
    assert "osfmodel 1.2.3" in words
    policy = next(attributes["content"] for tag, attributes in found.elements if "http-equiv" in attributes)
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'" in policy


def test_names_cannot_break_out_of_the_page():
    texts = ("workload", "cluster", "plan", "compression", "bandwidth", "latency", "effects", "error")
    records = [record(number, **{key: f"{key} {number} {HOSTILE}" for key in texts}) for number in range(5)]
    text = sweep_page(shown(records, ["cost"], name=HOSTILE), f"osf sweep {HOSTILE}", HOSTILE)
    found = Page(text)
    assert found.open == []
    assert Counter(tag for tag, _ in found.elements)["script"] == 1
    assert not [tag for tag, attributes in found.elements if tag == "img" or "onerror" in attributes]
    assert "".join(found.text).count(HOSTILE) >= 5 * len(texts[:7])


def test_each_point_has_a_row_with_its_exact_numbers():
    page = shown(some())
    text = sweep_page(page, "osf sweep", "1")
    rows = re.findall(r'<tr id="p\d+">(.*?)</tr>', text)
    assert len(rows) == len(page.points) == 31
    for row, point in zip(rows, page.points, strict=True):
        assert f'<td class="word">{point["cluster"]}</td><td>{point["workers"]}</td>' in row
        exact = [float(value) for value in re.findall('data-v="([^"]*)"', row)]
        for key in ("step_time_s", "samples_per_s") if point["error"] is None else ():
            assert pytest.approx(point[key], rel=1e-8) in exact
    assert "no prices at 30 workers" in rows[-1]


def test_the_best_are_marked_and_the_others_are_dots():
    page = shown(some(), ["samples_per_s", "cost"])
    found = Page(sweep_page(page, "osf sweep", "1"))
    classes = Counter(attributes.get("class") for _, attributes in found.elements if "data-row" in attributes)
    assert classes == {"point": len(page.best), "cloud c5 dot": 30 - len(page.best)}
    assert 0 < len(page.best) < 30
    marks = {attributes["data-row"] for _, attributes in found.elements if attributes.get("class") == "point"}
    assert marks == {f"p{one['point']}" for one in page.best}
    assert "Not drawn: 1 point without both values." in "".join(found.text)


def test_of_too_many_points_the_best_are_kept():
    """And the page says how many there are, and how to ask for fewer."""
    records = [record(number) for number in range(MOST + 300)]
    last = record(MOST + 300, step_time_s=1e-9, cost=1e-9)
    page = shown([*records, last], ["step_time_s", "cost"])
    assert len(page.points) == MOST
    assert page.best == [last] == [page.points[-1]]
    assert page.points[:-1] == records[: MOST - 1]
    text = sweep_page(page, "osf sweep", "1")
    assert f"{MOST:,} of {MOST + 301:,} points are here: the best and the first others" in text
    assert "--where CONDITION chooses fewer" in text
    assert len(re.findall('<tr id="p', text)) == MOST
    assert "--best GOAL marks the best of all" in shown(records).left_out
    assert shown(records[:MOST]).left_out == ""


def test_nothing_to_show_is_said():
    for page, words in (
        (shown(some(), where="workers > 1000"), "No point is like that."),
        (shown(some(), ["tokens_per_s"]), "No point has a value for tokens_per_s."),
        (shown([failed(1)]), "1 point, 1 without a prediction."),
    ):
        found = Page(sweep_page(page, "osf sweep", "1"))
        assert found.open == []
        assert words in "".join(found.text)


@pytest.mark.parametrize(
    ("goals", "across", "up"),
    [
        ((), "workers", "step_time_s"),
        (("cost",), "workers", "cost"),
        (("workers",), "workers", "step_time_s"),
        (("samples_per_s", "cost", "step_time_s"), "cost", "samples_per_s"),
    ],
)
def test_the_axes_are_the_goals(goals, across, up):
    page = shown(some(), goals)
    right, upward, spots = axes_of(page)
    assert (right.key, upward.key) == (across, up)
    assert [(one.x, one.y) for one in spots] == [
        (point[across] * right.factor, point[up] * upward.factor) for point in page.points if point["error"] is None
    ]


def test_the_cloud_on_a_terminal_has_the_best_at_its_edge(capsys):
    points = [record(n, workers=8 << n, samples_per_s=100.0 * 2**n, cost=2.0 - n / 10) for n in range(4)]
    points += [record(9, workers=8, samples_per_s=100.0, cost=9.0)]
    show_cloud(Console(width=60), shown(points, ["samples_per_s", "cost"]))
    title, *rows, axis = capsys.readouterr().out.splitlines()
    assert title == "samples/s over cost (million samples): ◆ best, · others"
    assert (rows[0].split(), rows[-1].split()) == (["800", "◆"], ["100", "·", "·"])
    assert axis.split() == ["1.7", "9"]
    assert sum(row.count("◆") for row in rows) == 1
    assert len(rows[-1]) == len(axis) == 58


def test_a_cloud_needs_two_points(capsys):
    show_cloud(Console(width=60), shown([record(1), failed(2)], ["samples_per_s", "cost"]))
    assert capsys.readouterr().out == ""


def test_axes_have_units_and_numbers_that_differ():
    memory = [record(n, peak_memory_bytes=(n + 1) * 2**30, mfu=0.3) for n in range(4)]
    right, upward, spots = axes_of(shown(memory, ["peak_memory_bytes", "mfu"]))
    assert (right.title, upward.title) == ("MFU (%)", "memory (GiB)")
    assert spots[0][:2] == (pytest.approx(30), 1)
    assert not right.logarithmic
    assert tick_texts([0.1235, 0.124, 0.1245]) == ["0.1235", "0.124", "0.1245"]
    assert tick_texts([1e5, 2e5]) == ["100k", "200k"]
    assert counts_shown([64, 8, 8, 16, 32, 128], 3) == [8, 32, 128]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The table of a small grid."""
    folder = tmp_path_factory.mktemp("sweep")
    grid = folder / "grid.yaml"
    grid.write_text(
        "workloads: resnet50-v100\nclusters: v100-10gbe\nworkers: [8, 32]\nplans: [ddp, optimal]\nprices: 2"
    )
    done = run(grid, "--into", folder / "sweep.csv")
    assert done.exit_code == 0, done.output
    return folder / "sweep.csv"


def run(*arguments):
    return invoke(["sweep", *map(str, arguments)])


@pytest.mark.covering
@pytest.mark.parametrize("ending", [".html", ".png", ".svg"])
@pytest.mark.parametrize("asked", [(), ("--best", "samples_per_s,cost"), ("--where", "workers > 100")])
def test_the_command_writes_pages_and_pictures(table, tmp_path, ending, asked):
    pytest.importorskip("matplotlib")
    target = tmp_path / f"sweep{ending}"
    done = run(table, *asked, "-o", target)
    assert done.exit_code == 0, done.output
    assert f"wrote {target} ({'page' if ending == '.html' else 'picture'})" in done.stderr
    kind = {".html": b"<!doctype html>", ".png": b"\x89PNG", ".svg": b"<?xml"}[ending]
    assert target.read_bytes().startswith(kind)


def test_the_page_has_influences_and_its_command(table, tmp_path):
    assert run(table, "--influence", "samples_per_s", "-o", tmp_path / "sweep.html").exit_code == 0
    text = (tmp_path / "sweep.html").read_text(encoding="utf-8")
    assert "Influence on samples/s" in text
    assert "<td>workers</td>" in text
    assert f"osf sweep {table} --influence samples_per_s -o" in text


def test_a_picture_that_cannot_be_is_refused_before_anything_is_predicted(table, tmp_path, monkeypatch):
    grid, into, target = table.parent / "grid.yaml", tmp_path / "new.csv", tmp_path / "sweep.png"
    done = run(grid, "--into", into, "--influence", "cost", "-o", target)
    assert done.exit_code == 2
    assert "a picture has no influences: leave --influence out" in done.stderr
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    done = run(grid, "--into", into, "-o", target)
    assert done.exit_code == 2
    assert "pictures as files need matplotlib" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---- in a browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    hostile = [record(n, workload=f"w{n} {HOSTILE}", error=HOSTILE if n else None) for n in range(3)]
    texts = {
        "plain": shown(some(), ["samples_per_s", "cost"]),
        "hostile": shown(hostile, ["cost"], name=HOSTILE),
        "large": shown([record(number) for number in range(PRINTED + 40)]),
    }
    for name, page in texts.items():
        (folder / f"{name}.html").write_text(sweep_page(page, "osf sweep", "1"), encoding="utf-8")
    return folder


SEEN = (
    "return [...document.querySelectorAll('#points tbody tr')].filter((row) => row.offsetParent).map((row) => row.id)"
)


def ids(points):
    return [f"p{one['point']}" for one in points]


def heading(chromium, name):
    (found,) = [one for one in chromium.all("#points thead th") if one.text.startswith(name)]
    return found


def choose(chromium, name, value):
    from selenium.webdriver.support.select import Select

    (label,) = [one for one in chromium.all(".filters label") if one.find_element("css selector", "span").text == name]
    Select(label.find_element("css selector", "select")).select_by_visible_text(value)


@pytest.mark.covering
@pytest.mark.parametrize("name", ["plain", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_and_is_quiet(chromium, pages, name, scheme, width):
    chromium.open(pages / f"{name}.html", width, scheme)
    assert_quiet(chromium)
    assert chromium.run("return document.documentElement.scrollWidth") == width
    wide = chromium.run(
        "return [...document.querySelectorAll('main *')].filter((one) => !one.closest('.tablebox, svg') &&"
        " one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert wide == []


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("step", "step_time_s"),
        pytest.param("GPUs", "workers", marks=pytest.mark.long),
        ("cluster", "cluster"),
    ],
)
def test_a_heading_sorts_by_numbers_or_texts(chromium, pages, name, key):
    """Up, down, and the order of the grid again; a point without a value comes last."""
    chromium.open(pages / "plain.html", 1366)
    known, unknown = (lambda one: one[key] is not None), [one for one in some() if one[key] is None]
    for way, falling in (("ascending", False), ("descending", True)):
        heading(chromium, name).find_element("css selector", "button").click()
        found = sorted(filter(known, some()), key=lambda one: one[key], reverse=falling)
        assert chromium.run(SEEN) == ids([*found, *unknown])
        sorts = [one.get_attribute("aria-sort") for one in chromium.all("#points th[aria-sort]")]
        assert sorts == [way] == [heading(chromium, name).get_attribute("aria-sort")]
    heading(chromium, name).find_element("css selector", "button").send_keys("\n")  # the keyboard, too
    assert chromium.run(SEEN) == ids(some())
    assert chromium.all("#points th[aria-sort]") == []
    assert_quiet(chromium)


@pytest.mark.parametrize("width", [WIDTHS[0], pytest.param(WIDTHS[1], marks=pytest.mark.long)])
def test_words_and_choices_filter(chromium, pages, width):
    """Together; the plot follows; and all comes back."""
    chromium.open(pages / "plain.html", width)
    status, off = (
        "return document.querySelector('.found').textContent",
        "return document.querySelectorAll('[data-off]').length",
    )
    names = [one.text for one in chromium.all(".filters label span")]
    assert names == ["search", "cluster", "GPUs", "plan", "error"]
    chromium.all(".filters input")[0].send_keys("OPT two")
    found = [one for one in some() if (one["plan"], one["cluster"]) == ("optimal", "two")]
    assert chromium.run(SEEN) == ids(found)
    choose(chromium, "GPUs", "16")
    found = [one for one in found if one["workers"] == 16]
    assert 0 < len(found) < 5
    assert chromium.run(SEEN) == ids(found)
    assert chromium.run(status) == f"{len(found)} of 31 points"
    assert chromium.run(off) == 30 - len(found)
    (clear,) = chromium.all(".filters button")
    clear.click()
    assert chromium.run(SEEN) == ids(some())
    assert chromium.run(off) == 0
    assert not clear.is_enabled()
    choose(chromium, "error", "(none)")
    assert chromium.run(SEEN) == ids(some()[:-1])
    assert_quiet(chromium)


def test_a_point_of_the_plot_says_its_values(chromium, pages):
    chromium.open(pages / "plain.html", 1366)
    dot = chromium.all("circle.dot")[-1]  # on top of the others
    chromium.point(dot)
    said, marked = chromium.run(
        "return [document.querySelector('.say').textContent, document.querySelector('tr.on').id]"
    )
    assert marked == dot.get_attribute("data-row")
    point = some()[int(marked[1:])]
    assert f"cluster {point['cluster']}, GPUs {point['workers']}, plan {point['plan']}, step " in said
    chromium.run("document.querySelector('.point').focus()")
    best = chromium.driver.switch_to.active_element
    said = chromium.run("return document.querySelector('.say').textContent")
    assert said == best.get_attribute("aria-label")
    best.send_keys("\n")
    row = f"document.getElementById('{best.get_attribute('data-row')}').getBoundingClientRect()"
    assert chromium.run(f"const box = {row}; return box.top >= 0 && box.bottom <= innerHeight")
    assert_quiet(chromium)


def test_on_paper(chromium, pages):
    """No filters, nothing in a box that scrolls, the first rows of those shown; and the page says so."""
    assert f"PRINTED = {PRINTED}," in (ROOT / "osfmodel/show/assets/sweep.js").read_text(encoding="utf-8")
    chromium.open(pages / "large.html", 794)
    features = [{"name": "prefers-color-scheme", "value": "light"}]
    assert len(chromium.run(SEEN)) == PRINTED + 40
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert chromium.run(SEEN) == [f"p{number}" for number in range(PRINTED)]
    assert chromium.run("return document.querySelector('.paper').offsetParent !== null")
    assert chromium.run("return getComputedStyle(document.querySelector('.filters')).display") == "none"
    cut = "const box = document.querySelector('.all'); return box.scrollHeight > box.clientHeight + 1"
    assert not chromium.run(cut)
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    choose(chromium, "plan", "ddp")
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert chromium.run(SEEN) == [f"p{number}" for number in range(0, PRINTED + 40, 2)]
    assert not chromium.run("return document.querySelector('.paper').offsetParent !== null")
    assert chromium.printed() > 20_000
