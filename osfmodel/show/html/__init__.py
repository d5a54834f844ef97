"""The report, and what osf explain finds, as self-contained HTML pages: their SVG, their style and their script."""
