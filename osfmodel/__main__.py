"""``python -m osfmodel`` is ``osf``."""

from osfmodel.cli import main

main(prog_name="osf")
