"""Jobs as a profiler saw them: their traces, and the workload, plan, cluster and times in these."""

from osfmodel.entities.trace import Collective, GradientReady, RankTrace, Step, Trace
from osfmodel.formats.traces.entities import cluster_of, measurement_of, plan_of, workload_of

__all__ = [
    "Collective",
    "GradientReady",
    "RankTrace",
    "Step",
    "Trace",
    "cluster_of",
    "measurement_of",
    "plan_of",
    "workload_of",
]
