"""Jobs as a profiler saw them: what is on the record, and the workload, plan, cluster and times that it holds."""

from osfmodel.trace.nouns import cluster_of, measurement_of, plan_of, workload_of
from osfmodel.trace.record import Collective, GradientReady, RankTrace, Step, Trace

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
