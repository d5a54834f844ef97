"""The command ``osf doctor``."""

from __future__ import annotations

import click

from osfmodel.cli.app import CLUSTER, NameOrFile, OneOf, emit, output_options, warn
from osfmodel.cli.groups import GroupedCommand, OptionGroup
from osfmodel.cost.clusters import load_cluster
from osfmodel.diagnosis.doctor.faults import NETWORK_FAULTS
from osfmodel.diagnosis.doctor.reading import examine
from osfmodel.entities.cluster import COLLECTIVES
from osfmodel.formats import Hints
from osfmodel.show.checkup import Examined

LOG = NameOrFile("log", CLUSTER.known, folders=True)
UNSAID = OptionGroup("If the file does not say it")


@click.command(name="doctor", cls=GroupedCommand)
@click.argument("files", metavar="LOG|CLUSTER...", nargs=-1, required=True, type=LOG)
@click.option(
    "--against", metavar="MACHINE", type=CLUSTER,
    help="The machine as its data sheet describes it: nccl:h100x8,400Gbps,ib or ring:50us,10Gbps; or an earlier "
    "measurement of it. Default, for bundled clusters: their own data sheet.",
)  # fmt: skip
@click.option("--fail", is_flag=True, help="Exit with 1 if a fault is named.")
@UNSAID.option("--workers", type=click.IntRange(2), metavar="N", help="Workers, where the file does not say.")
@UNSAID.option("--gpus-per-node", type=click.IntRange(1), metavar="G", help="GPUs in a node, where hosts do not say.")
@UNSAID.option("--collective", type=OneOf(COLLECTIVES), help="Collective that nccl-tests ran, if in doubt.")
@output_options
def doctor_command(
    files: tuple[str, ...],
    against: str | None,
    fail: bool,
    workers: int | None,
    gpus_per_node: int | None,
    collective: str | None,
    style: str | None,
    as_json: bool,
    output: str | None,
) -> int:
    """Check a network: is it as fast as other machines of its kind, and if not, what is the likely fault?

    LOG is what nccl-tests printed, a folder of NCCL Inspector, or another file of collectives that 'osf import' reads;
    CLUSTER a file of 'osf bench --quick' or a bundled name. Several files are one machine: all hosts, and groups of
    them, which show a slow host. By size it says the price from the data sheet and the percentile among other machines;
    then the fault whose curve fits, and the experiment that would prove it. "Cannot tell" is an answer.

    \b
    Example:
      osf doctor azure-a100-hdr
      osf doctor emulated-4x1gbit --against ring:50us,5Gbps
      osf doctor nccl-tests.log --against nccl:h100x8,400Gbps,ib
      osf doctor all-hosts.json hosts-0-1.json hosts-2-3.json --against ring:50us,1Gbps
      osf doctor this-month.json --against last-month.json --fail
    """
    hints = Hints("", workers=workers, gpus_per_node=gpus_per_node, collective=collective)
    found = examine(files, None if against is None else load_cluster(against), hints, warn)
    emit(style, as_json, output, Examined(found))
    return int(fail and found.cause in NETWORK_FAULTS)
