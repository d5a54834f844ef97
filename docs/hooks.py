"""Hooks of the site's build: prompts in console examples, and folders whose pages the navigation finds."""

import re
from pathlib import Path

from pygments.lexers.shell import BashSessionLexer

BashSessionLexer._ps1rgx = re.compile(r"^(\$ )(.*\n?)")
"""Only ``$ `` is a prompt, so that output with ``#`` is none."""


def on_config(config):
    """Put the pages of a folder, by name, where the navigation says ``folder/*.md``."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        for name, pages in section.items():
            if isinstance(pages, str) and "*" in pages:
                section[name] = sorted(page.relative_to(docs).as_posix() for page in docs.glob(pages))
