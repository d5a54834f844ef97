"""Hooks of the site's build: prompts in examples, folders in the navigation, made pages, the search."""

import re
import sys
from pathlib import Path

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter
from pygments.lexers.shell import BashSessionLexer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.generated_pages import command_pages

BashSessionLexer._ps1rgx = re.compile(r"^(\$ )(.*\n?)")
"""Only ``$ `` is a prompt, so that output with ``#`` is none."""
NOTEBOOK_LINK = re.compile(r"\]\(([\w./-]+)\.ipynb(#[\w-]+)?\)")

COMMAND = re.compile(r"^\| (`osf (\w+)`) \|", re.MULTILINE)
"""A command in the list of all."""

BOOSTS = {"how-to/add-": 0.1, "how-to/save-": 0.1, "design": 0.1, "decisions": 0.1, "ledger/": 0.3, "reference/": 0.5}
"""Ranks in the search of pages that few readers look for, by the beginning of their addresses."""


def on_config(config):
    """Put the pages of a folder, by name, where the navigation says ``folder/*.md``."""
    docs = Path(config.docs_dir)
    for section in config.nav:
        for name, pages in section.items():
            if isinstance(pages, str) and "*" in pages:
                section[name] = sorted(page.relative_to(docs).as_posix() for page in docs.glob(pages))


def on_files(files, config):
    """Make a page of each command, and of each notebook, with its stored outputs, beside the notebook itself."""
    docs = Path(config.docs_dir)
    for page, text in command_pages().items():
        files.append(File.generated(config, page.relative_to(docs).as_posix(), content=text))
    for file in [one for one in files if one.src_uri.endswith(".ipynb")]:
        body, _ = MarkdownExporter().from_filename(file.abs_src_path)
        name = Path(file.src_uri).name
        saved = f'<a href="{name}" download>Download this notebook</a>\n\n'
        files.append(File.generated(config, file.src_uri.replace(".ipynb", ".md"), content=saved + body))


def on_page_markdown(markdown, page, **_):
    """Lead to pages that the build makes, of commands and notebooks; let the search find pages for users first."""
    for beginning, boost in BOOSTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta.setdefault("search", {})["boost"] = boost
    if page.file.src_uri == "commands/index.md":
        markdown = COMMAND.sub(r"| [\1](\2.md) |", markdown)
    return NOTEBOOK_LINK.sub(r"](\1.md\2)", markdown)


def on_post_build(config):
    """Prepare queries before the theme's search worker sees them; redirect old addresses."""
    site = Path(config.site_dir)
    for worker in site.glob("assets/javascripts/workers/search.*.js"):
        worker.write_text((site / "assets/search.js").read_text() + worker.read_text())
    for old, new in config.extra["redirects"].items():
        (site / old).write_text(
            f'<meta charset="utf-8"><meta http-equiv="refresh" content="0; url={new}"><a href="{new}">Moved</a>'
        )
