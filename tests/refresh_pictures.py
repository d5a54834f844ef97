"""Draw the pictures of docs/how-to/show-it.md anew: ``python -m tests.refresh_pictures`` (needs Chromium).

The picture of the page shows it with the third bucket pointed at. Look at what has changed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.browser import browser
from tests.commands import invoke
from tests.conftest import ROOT

COMMAND = ["report", "resnet50-v100", "--cluster", "v100-10gbe", "--workers", "64"]
WIDTH, HEIGHT = 1000, 850


def photograph(page: Path, picture: Path) -> None:
    """The upper part of the page as PNG."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser(Path(profile)) as chromium:
        chromium.open(page, WIDTH)
        chromium.run("document.querySelectorAll('.block:not([hidden]) .collective')[2].focus()")
        picture.write_bytes(chromium.shot(WIDTH, HEIGHT))


if __name__ == "__main__":
    folder = ROOT / "docs" / "how-to"
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "report.html"
        invoke([*COMMAND, "-o", str(page), "-o", str(folder / "show-it.png")], catch_exceptions=False)
        photograph(page, folder / "show-it-page.png")
