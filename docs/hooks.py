"""Hooks of the site's build: prompts in console examples, folders in the navigation, and pages of notebooks."""

import re
from pathlib import Path

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter
from pygments.lexers.shell import BashSessionLexer

BashSessionLexer._ps1rgx = re.compile(r"^(\$ )(.*\n?)")
"""Only ``$ `` is a prompt, so that output with ``#`` is none."""
NOTEBOOK_LINK = re.compile(r"\]\(([\w./-]+)\.ipynb(#[\w-]+)?\)")


def on_config(config):
    """Put the pages of a folder, by name, where the navigation says ``folder/*.md``."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        for name, pages in section.items():
            if isinstance(pages, str) and "*" in pages:
                section[name] = sorted(page.relative_to(docs).as_posix() for page in docs.glob(pages))


def on_files(files, config):
    """Make a page of each notebook, with its stored outputs, beside the notebook itself."""
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        body, _ = MarkdownExporter().from_filename(file.abs_src_path)
        name = Path(file.src_uri).name
        saved = f'<a href="{name}" download>Download this notebook</a>\n\n'
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=saved + body))


def on_page_markdown(markdown, **_):
    """Lead from page to page where a link leads to a notebook."""
    return NOTEBOOK_LINK.sub(r"](\1.md\2)", markdown)
