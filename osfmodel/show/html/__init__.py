"""The report, and what osf explain finds, as self-contained HTML pages: their SVG, their style and their script."""

from __future__ import annotations

from osfmodel.show.html.explained import explanation_page
from osfmodel.show.html.html import page

__all__ = ["explanation_page", "page"]
