"""The report in a real browser: no error, no request, and everything that a person does to it."""

from __future__ import annotations

import re

import pytest

from osfmodel.show.explained.page import explanation_page
from osfmodel.show.report.page import page
from tests.browser import assert_quiet
from tests.reports import HOSTILE, explanation, hostile, hostile_explanation, resnet50


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    texts = {"plain": page(resnet50(), "1"), "hostile": page(hostile(), "1")}
    texts["explained"] = explanation_page(explanation(), "1")
    texts["hostile-explained"] = explanation_page(hostile_explanation(), "1")
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.covering
@pytest.mark.parametrize("name", ["plain", "hostile", "explained", "hostile-explained"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_and_is_quiet(chromium, pages, name, scheme, width):
    chromium.open(pages / f"{name}.html", width, scheme)
    assert_quiet(chromium)
    assert chromium.run("return document.documentElement.scrollWidth") == width
    # Nothing sticks out to the right, but for what scrolls within a box of its own.
    wide = chromium.run(
        "return [...document.querySelectorAll('main *')].filter((one) => !one.closest('.scroll, .tablebox, svg') &&"
        " one.getBoundingClientRect().right > innerWidth + 0.5).map((one) => one.outerHTML.slice(0, 80))"
    )
    assert wide == []
    paper = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, paper[4:-1].split(","))) < 150) == (scheme == "dark")
    assert chromium.run(CONTRAST) == []


@pytest.mark.parametrize("width", [pytest.param(390, marks=pytest.mark.long), 1200])
def test_every_colour_is_drawn(chromium, pages, width):
    """A screenshot beside each page, to be looked at; each colour of the chart covers something of it."""
    numpy, image = pytest.importorskip("numpy"), pytest.importorskip("matplotlib.image")
    seen = {}
    for name in ("plain", "explained"):
        chromium.open(pages / f"{name}.html", width)
        (pages / f"{name}-{width}.png").write_bytes(chromium.shot(width))
        seen[name] = image.imread(pages / f"{name}-{width}.png")
    (pages / "nothing.html").write_text("<!doctype html><title>nothing</title>")
    chromium.open(pages / "nothing.html", width)
    (pages / "nothing.png").write_bytes(chromium.shot(width, 900))
    seen["nothing"] = image.imread(pages / "nothing.png")
    for name, pixels in seen.items():
        assert pixels.shape[1] == width
        red, green, blue = numpy.moveaxis((255 * pixels[..., :3]).astype(int), -1, 0)
        colours, counts = numpy.unique(red << 16 | green << 8 | blue, return_counts=True)
        large = [(one >> 16, one >> 8 & 255, one & 255) for one in colours[counts > 200].tolist()]
        coloured = [colour for colour in large if max(colour) - min(colour) > 40]
        assert (len(coloured) >= 2) == (name != "nothing"), (name, coloured)


CONTRAST = """
const light = (text) => {
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = text.match(/[0-9.]+/g).map((v) => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (one) => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (colour !== "rgba(0, 0, 0, 0)") return colour;
  }
  return "rgb(255, 255, 255)";
};
const low = [];
for (const one of document.querySelectorAll("main *:not(svg *)")) {
  if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
  const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) low.push(one.outerHTML.slice(0, 80));
}
return low;
"""
"""The elements whose text has less contrast with what is behind it than WCAG 2's 4.5 to 1."""


def test_pointing_at_a_bar_shows_its_bucket(chromium, pages):
    chromium.open(pages / "plain.html")
    bar = chromium.all(".block:not([hidden]) .collective")[2]
    chromium.point(bar)
    told = chromium.run("return document.querySelector('#details').innerText")
    bucket = resnet50().predicted[0].collectives[2]
    assert "Bucket 3: All-reduce" in told
    assert "25.04 MiB" in told
    assert str(len(bucket.layers)) in told.split()
    assert f"{bucket.end * 1e3:.2f} ms" in told
    marked = chromium.run("return [...document.querySelectorAll('.block:not([hidden]) .on')].map((one) => one.tagName)")
    assert sorted(marked) == ["g", "rect"]  # the collective, and the backward that makes it ready
    computing = chromium.all(".block:not([hidden]) rect.forward")[0]
    chromium.point(computing)
    assert "Forward" in chromium.run("return document.querySelector('#details').innerText")
    assert_quiet(chromium)


def test_the_keyboard_reaches_every_bar(chromium, pages):
    chromium.open(pages / "plain.html")
    chromium.run("document.querySelector('.block:not([hidden]) .collective').focus()")
    seen = []
    for _ in range(5):
        seen.append(chromium.run("return document.querySelector('#details h3').textContent"))
        chromium.driver.switch_to.active_element.send_keys("\ue014")  # the right arrow key
    assert seen == [f"Bucket {number}: All-reduce" for number in (1, 2, 3, 4, 5)]


def test_a_finger_on_a_bar_shows_its_bucket(chromium, pages):
    chromium.open(pages / "plain.html", 390)
    spot = chromium.run(
        "const bar = document.querySelectorAll('.block:not([hidden]) .collective')[1]; bar.scrollIntoView();"
        "const box = bar.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]"
    )
    touch = {"type": "touchStart", "touchPoints": [{"x": spot[0], "y": spot[1]}]}
    chromium.driver.execute_cdp_cmd("Input.dispatchTouchEvent", touch)
    chromium.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert chromium.run("return document.querySelector('#details').innerText").startswith("Bucket 2")


def test_another_plan_is_another_chart(chromium, pages):
    """Measured steps keep their length on the axis of the plan that is shown."""
    chromium.open(pages / "hostile.html")
    charts = hostile().predicted
    shown = "return [...document.querySelectorAll('.inner .block:not([hidden]) svg.lanes')]"
    for number, gantt in enumerate(charts):
        chromium.run("document.querySelectorAll('input[name=plan]')[arguments[0]].click()", number)
        assert chromium.run(f"{shown}[0].querySelectorAll('.collective').length") == len(gantt.collectives)
        assert chromium.run("return document.querySelectorAll('details[data-plan]:not([hidden])').length") == 1
        end = max(gantt.end, *(one.end for one in hostile().measured))
        widths = [
            chromium.run(f"{shown}[{place}].querySelector('.span').getBoundingClientRect().width") for place in (0, 1)
        ]
        whole = chromium.run(f"{shown}[0].getBoundingClientRect().width")
        assert widths[1] / whole == pytest.approx(hostile().measured[0].end / end, abs=0.02)
    assert HOSTILE[:20] in chromium.run("return document.querySelector('.measured').innerText")
    assert_quiet(chromium)


def test_zooming_in_and_out(chromium, pages):
    chromium.open(pages / "plain.html")
    state = "const box = document.querySelector('.scroll'); return [box.scrollWidth / box.clientWidth, box.scrollLeft]"
    ticks = "return [...document.querySelectorAll('.axis text')].map((one) => one.textContent)"
    assert chromium.run(state) == [1, 0]
    before = chromium.run(ticks)
    assert before[:2] == ["0", "20 ms"]
    for _ in range(3):
        chromium.all("[data-zoom=in]")[0].click()
    factor, left = chromium.run(state)
    assert factor == pytest.approx(1.6**3, rel=0.01)
    assert left > 0  # the middle stays in the middle
    assert chromium.run(ticks) != before
    chromium.all("[data-zoom=all]")[0].click()
    assert chromium.run(state) == [1, 0]
    wheel = (
        "document.querySelector('.scroll').dispatchEvent(new WheelEvent('wheel', {deltaY: -300, ctrlKey: arguments[0],"
    )
    wheel += " clientX: 600, cancelable: true, bubbles: true}))"
    chromium.run(wheel, False)
    assert chromium.run(state)[0] == 1  # a wheel alone scrolls the page
    chromium.run(wheel, True)
    assert chromium.run(state)[0] == pytest.approx(2.72, rel=0.02)
    chromium.run("document.querySelector('.scroll').focus()")
    chromium.driver.switch_to.active_element.send_keys("0")
    assert chromium.run(state)[0] == 1


def test_narrow_bars_get_their_numbers_when_zoomed(chromium, pages):
    chromium.open(pages / "plain.html")
    chromium.run("document.querySelectorAll('input[name=plan]')[2].click()")  # wfbp: 161 bars
    count = "return document.querySelectorAll('.block:not([hidden]) .collective text').length"
    assert chromium.run(count) == 0
    for _ in range(6):
        chromium.all("[data-zoom=in]")[0].click()
    assert chromium.run(count) > 20


def test_points_of_curves_say_what_they_are(chromium, pages):
    chromium.open(pages / "plain.html")
    chromium.point(chromium.all("#workers .point")[5])
    said = chromium.run("return document.querySelector('#workers .say').textContent")
    assert re.match(r"(ddp|optimal), 64 workers: 1[0-9][0-9] ms", said)
    chromium.run("document.querySelector('#sizes .mark.best').closest('.point').focus()")
    said = chromium.run("return document.querySelector('#sizes .say').textContent")
    assert re.match(r"Best: [34][0-9]\.[0-9]+ MiB: 1[0-9][0-9] ms in 3 buckets", said)


def test_on_paper(chromium, pages):
    """Light, without buttons, and in one piece however it was zoomed before."""
    chromium.open(pages / "plain.html", 794, "dark")
    chromium.all("[data-zoom=in]")[0].click()
    size = chromium.printed()
    assert size > 20_000
    features = [{"name": "prefers-color-scheme", "value": "light"}]
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert chromium.run("return getComputedStyle(document.querySelector('.tools')).display") == "none"
    inner = "const box = document.querySelector('.inner').getBoundingClientRect(); return box.width"
    assert chromium.run(inner) <= 794
    assert_quiet(chromium)


HIDDEN_ROWS = (
    "return [...document.querySelectorAll('.tablebox')].filter((one) => one.scrollHeight > one.clientHeight + 1).length"
)


@pytest.mark.parametrize("width", [390, pytest.param(1200, marks=pytest.mark.long)])
def test_every_row_of_an_explanation_is_seen(chromium, pages, width):
    """In full height, and on a narrow page with the words of a row below its figures, not out of sight beside them."""
    chromium.open(pages / "explained.html", width, "light")
    assert len(chromium.all(".tablebox tbody tr")) > 20
    assert chromium.run(HIDDEN_ROWS) == 0
    cut = (
        "return [...document.querySelectorAll('.worded th, .worded td')].filter((one) => one.textContent &&"
        " one.getBoundingClientRect().right > one.closest('.tablebox').getBoundingClientRect().right + 0.5).length"
    )
    assert chromium.run(cut) == 0


def test_an_explanation_on_paper(chromium, pages):
    """Whole tables: nothing of them is left in a box that scrolls."""
    chromium.open(pages / "explained.html", 794, "light")
    assert chromium.printed() > 20_000
    features = [{"name": "prefers-color-scheme", "value": "light"}]
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert chromium.run(HIDDEN_ROWS) == 0
    assert_quiet(chromium)


def test_the_check_for_requests_can_fail(chromium, tmp_path):
    """An oracle shown failing: a picture from elsewhere, an error in a script, something too wide."""
    path = tmp_path / "loud.html"
    path.write_text(
        "<main><div style='width: 3000px; color: #999'>wide</div></main><img src='http://127.0.0.1:9/x.png'><script>nothing()</script>"
    )
    chromium.open(path)
    assert any("nothing is not defined" in words for words in chromium.complaints())
    assert chromium.requests() == ["http://127.0.0.1:9/x.png"]
    assert chromium.run("return document.documentElement.scrollWidth") > 1200
    assert len(chromium.run(CONTRAST)) == 1
