"""Our own files: documents, bundled profiles, the short notation of plans; text as shells and terminals leave it."""

import codecs
import re

LARGEST_FILE = 64 * 2**20
"""Largest size in bytes of a file of ours, or of a log."""
ENCODINGS = (
    (re.compile(re.escape(codecs.BOM_UTF8)), "utf-8-sig"),
    (re.compile(re.escape(codecs.BOM_UTF32_LE) + b"|" + re.escape(codecs.BOM_UTF32_BE)), "utf-32"),
    (re.compile(re.escape(codecs.BOM_UTF16_LE) + b"|" + re.escape(codecs.BOM_UTF16_BE)), "utf-16"),
    (re.compile(rb"(?:[\t\r\n -~]\0){8}"), "utf-16-le"),
    (re.compile(rb"(?:\0[\t\r\n -~]){8}"), "utf-16-be"),
)
"""Encodings other than plain UTF-8, by how such a file begins: PowerShell's is UTF-16 with a mark."""
ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b\r\n]{0,400}(?:\x07|\x1b\\)|[ -/]?[0-~])?")
"""A terminal's escape sequence: colours, movements of the cursor, titles, links."""


def as_utf8(content: bytes) -> bytes:
    """``content`` in UTF-8 without a byte order mark, if it begins as text of another encoding; else as it is."""
    for sign, encoding in ENCODINGS:
        if sign.match(content):
            return content.decode(encoding, "replace").encode("utf-8", "replace")
    return content


def plain_text(content: bytes, errors: str = "strict") -> str:
    """The text in ``content`` without escape sequences. Raises UnicodeDecodeError, unless ``errors`` replaces."""
    text = as_utf8(content).decode("utf-8", errors)
    return ESCAPE.sub("", text) if "\x1b" in text else text
