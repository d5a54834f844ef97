"""The report, and what osf explain finds, as self-contained HTML pages: their SVG, their style and their script."""

from __future__ import annotations

from osfmodel.report.explained import explanation_page
from osfmodel.report.html import page

__all__ = ["explanation_page", "page"]
