"""The frame of all pages: self-contained, readable without a script and on paper.

The content security policy allows only the page's own style and script, by their hashes, so that even a name that
was not escaped could not run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from importlib.resources import files

from osfmodel.show.html.markup import Markup, element

ICON = "data:,"
"""An empty icon, so that no browser asks a server for one."""


def document(title: str, version: str, content: Iterable[Markup], script_file: str | None = None) -> str:
    """A page as text: its style, ``content``, and its script if it has one."""
    style, scripts = _asset("report.css"), [_asset(script_file)] if script_file else []
    allowed = f"'{_hash(scripts[0])}'" if scripts else "'none'"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src {allowed}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"osfmodel {version}"),
        element("title", title),
        element("link", rel="icon", href=ICON),
        element("style", Markup(style)),
    )
    running = [element("script", Markup(script)) for script in scripts]
    body = element("body", _patterns(), element("main", *content), *running)
    return f"<!doctype html>\n{element('html', head, body, lang='en').text}\n"


def section(key: str, title: str, content: Iterable[Markup]) -> Markup:
    """A part of a page under its heading."""
    heading = element("h2", title, id=f"{key}-title")
    return element("section", heading, *content, id=key, aria_labelledby=f"{key}-title")


def _asset(name: str) -> str:
    return files("osfmodel.show.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()


def _patterns() -> Markup:
    """Hatching and dots, defined once for all drawings of the page."""
    stripe = element("path", d="M0 0V6", stroke_width=3.0, class_="stripe")
    pattern = element(
        "pattern", stripe, id="hatch", width=6, height=6, patternUnits="userSpaceOnUse", patternTransform="rotate(45)"
    )
    dot = element("circle", cx=2, cy=2, r=1.2, class_="dot")
    dots = element("pattern", dot, id="dots", width=5, height=5, patternUnits="userSpaceOnUse")
    return element("svg", element("defs", pattern, dots), width=0, height=0, class_="patterns", aria_hidden="true")
