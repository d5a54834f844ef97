"""The docs site: every page has its place, every entry of a table its page, and the built site fetches nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

DOCS = ROOT / "docs"
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(nav: Any) -> Iterator[str]:
    """The pages that a navigation leads to, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once():
    there = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    assert sorted(pages_of(SETTINGS["nav"])) == there


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as readers get it: any page left out and any link or anchor into nothing is a failure."""
    pytest.importorskip("material", reason="needs pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


FETCHED = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def test_no_page_fetches_anything(site):
    """All that a page loads lies beside it; links that a reader may follow are no fetching."""
    built = {page.name: FETCHED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert len(built) > 40
    assert {name: found for name, found in built.items() if found} == {}


def test_the_search_for_fetched_assets_can_fail():
    assert FETCHED.findall('<link rel="stylesheet" href="https://fonts.example/css"> <script src=//cdn.example/x.js>')
    assert not FETCHED.findall('<link rel="stylesheet" href="../assets/x.css"> <a href="https://example.org">x</a>')
