"""The report and the explanation of a trace as self-contained HTML pages, with SVG, style and script inside."""
