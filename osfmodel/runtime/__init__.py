"""Everything that needs PyTorch or Horovod: profile, benchmark, train, execute a plan, tune live.

torch is imported inside functions, so that everything else works without it.
"""
