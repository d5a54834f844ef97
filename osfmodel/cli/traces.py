"""--ddp-logging, --model and --steps: hints for reading traces, and the reading itself."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from osfmodel.cli.app import WORKLOAD, warn
from osfmodel.cli.groups import READ, TRACES
from osfmodel.counting import load_workload
from osfmodel.entities.errors import DataError, UsageError
from osfmodel.entities.files import profiles
from osfmodel.entities.files.profiles import plain_text
from osfmodel.entities.trace import Trace
from osfmodel.formats import Hints, load_trace
from osfmodel.formats.layers import sniff_ddp
from osfmodel.formats.source_text import Text
from osfmodel.formats.streams.archives import unpacked
from osfmodel.show.terminal import progress_bar

STEPS = re.compile(r"(\d{1,12})(?:\.\.(\d{1,12}))?")
OPTIONS = (
    TRACES.option("--steps", metavar="N[..M]", help="Only these steps of a trace."),
    TRACES.option(
        "--model", metavar="WORKLOAD", type=WORKLOAD, help="Its workload, for a trace without sizes of gradients."
    ),
    TRACES.option("--ddp-logging", metavar="FILE", type=READ, help="DDP's log, for a trace without bucket sizes."),
)


def trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for reading traces; the command receives them as its ``hints``, without a name."""

    @functools.wraps(command)
    def gathered(ddp_logging: str | None, model: str | None, steps: str | None, **others: Any) -> Any:
        hints = Hints(
            "",
            ddp_logging=None if ddp_logging is None else read_log(ddp_logging),
            model=None if model is None else load_workload(model),
            steps=None if steps is None else parse_steps(steps),
        )
        return command(hints=hints, **others)

    wrapped: Callable[..., Any] = gathered
    for option in OPTIONS:
        wrapped = option(wrapped)
    return wrapped


def parse_steps(text: str) -> tuple[int, int]:
    """Parse ``5..7`` or ``5`` into the first and the last step. Raises UsageError."""
    found = STEPS.fullmatch(text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise UsageError(f"--steps {text}: give the first and the last, such as 5..7")
    return int(found[1]), int(found[2] or found[1])


def read_log(file: str) -> Text:
    """DDP's log, packed with gzip or not. Raises DataError if it cannot be read."""
    text = profiles.read(Path(file), lambda content: Text(file, plain_text(unpacked(content), "replace")))
    if not sniff_ddp("".join(line for _, line in text.lines())):
        raise DataError(f"--ddp-logging {file}: is not DDP's log (_get_ddp_logging_data() as JSON): leave it out")
    return text


def load_job(files: Sequence[str], hints: Hints, form: str | None = None) -> Trace:
    """Load a job's traces as :func:`load_trace` does; warnings on stderr, and on a terminal a progress bar."""
    with progress_bar("reading") as progress:
        return load_trace([Path(file) for file in files], hints, warn, progress, form)
