"""Ranks in the test of sparse training: ``python -m tests.live.learning digits``."""

from __future__ import annotations

import sys

from benchmarks.sparse_training import Digits, Way, train
from tests.live.executing import main

STEPS, DENSITY = 400, 0.01


def digits():
    """{how: training loss}, dense, with error feedback and without it."""
    problem = Digits()
    problem.steps = STEPS
    dense, sparse = Way("plain", None), Way("plain", DENSITY)
    return {
        "dense": train(problem, dense, 0).train,
        "feedback": train(problem, sparse, 0).train,
        "mirror": train(problem, sparse._replace(mirror=True), 0).train,
        "forgetful": train(problem, sparse, 0, forget=True).train,
    }


if __name__ == "__main__":
    main({"digits": digits}, *sys.argv[1:])
