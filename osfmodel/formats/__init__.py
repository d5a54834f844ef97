"""Files of other tools -> our entities.

To add one: a module with ``sniff(head)`` and ``read(text, hints)``, and one line of IMPORT_FORMATS; from another
package, an entry point of ``osfmodel.formats``, which is asked about files that no format here recognises. If a job has
several files, of any size and also in archives and folders, the module reads them as streams: traces with steps in
``trace_of(files, hints)``, which gives a Trace, from which ``of_traces`` makes the nouns; any others in
``read_job(files, hints)``, which gives the nouns. Sniffing is exclusive: no file is recognised by two, which
tests/formats checks over samples of all.
"""

from __future__ import annotations

from osfmodel.formats.collectives import as_one_cluster
from osfmodel.formats.format import IMPORT_FORMATS, Format, of_traces
from osfmodel.formats.reading import (
    format_of,
    holds_traces,
    import_content,
    import_file,
    import_job,
    is_job,
    load_trace,
    recognise,
)
from osfmodel.formats.source_text import Files, Hints, Noun
from osfmodel.formats.traces.cautions import nouns_of

__all__ = [
    "IMPORT_FORMATS", "Files", "Format", "Hints", "Noun", "as_one_cluster", "format_of", "holds_traces",
    "import_content", "import_file", "import_job", "is_job", "load_trace", "nouns_of", "of_traces", "recognise",
]  # fmt: skip
