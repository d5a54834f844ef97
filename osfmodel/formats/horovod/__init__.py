"""Horovod's timelines and autotune logs -> workloads and measured steps."""
