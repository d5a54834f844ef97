"""The report as one self-contained HTML page, its SVG, its style and its script."""

from __future__ import annotations

from osfmodel.report.html import page

__all__ = ["page"]
