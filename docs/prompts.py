"""A hook of the site's build: only ``$ `` is a prompt in console examples, so that output with ``#`` is none."""

import re

from pygments.lexers.shell import BashSessionLexer

BashSessionLexer._ps1rgx = re.compile(r"^(\$ )(.*\n?)")
