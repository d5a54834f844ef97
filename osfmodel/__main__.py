"""``python -m osfmodel`` is ``osf``."""

from osfmodel.cli import run

run()
