"""A headless Chromium for tests of pages; they skip where there is none, unless OSFMODEL_REQUIRE_CHROMIUM is set."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "hide-scrollbars")
SWITCHES += ("disable-background-networking", "disable-component-update", "disable-sync")  # no requests of its own


def missing() -> str:
    """Why no browser can be driven here; empty where one can."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed: pip install selenium"
    if not any(map(shutil.which, NAMES)):
        return "there is no Chromium: apt-get install chromium"
    return "" if shutil.which("chromedriver") else "there is no chromedriver: apt-get install chromium-driver"


def skip_or_fail() -> None:
    """Skip the test where there is no browser; fail it where one is required."""
    why = missing()
    if why and os.environ.get("OSFMODEL_REQUIRE_CHROMIUM"):
        pytest.fail(why)
    if why:
        pytest.skip(why)


class Browser:
    """A page in a window of a size, under a colour scheme, on a screen or on paper."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = 1200, scheme: str = "light", medium: str = "") -> None:
        """Load the page; what the last one logged is forgotten."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})
        self.complaints()
        self.requests()
        self.driver.get(page.as_uri())

    def run(self, script: str, *arguments):
        """The result of a script."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Errors, refusals of its policy and warnings that the page has logged since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last question, the page's own and inline data left out."""
        told = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [one["params"]["request"]["url"] for one in told if one["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("file:", "data:"))]

    def point(self, element) -> None:
        """Move the pointer onto it."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).move_to_element(element).perform()

    def all(self, selector: str):
        """The elements that match."""
        return self.driver.find_elements("css selector", selector)

    def shot(self, width: int, height: int = 0) -> bytes:
        """The page as PNG, from its top; all of it where no height is given."""
        height = height or self.run("return document.documentElement.scrollHeight")
        part = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        asked = {"format": "png", "captureBeyondViewport": True, "clip": part}
        return base64.b64decode(self.driver.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])

    def printed(self) -> int:
        """How many bytes it has as PDF."""
        return len(self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """One with a fresh profile in ``folder``."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, NAMES)))
    for switch in (*SWITCHES, f"user-data-dir={folder}"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def assert_quiet(chromium: Browser) -> None:
    """Nothing was logged, nothing was asked for, nothing was fetched."""
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
