"""Random subjects on which a plan called best is not, or an easier job takes longer:

    python benchmarks/dominance.py [--subjects 2000] [--seed 1] [--jobs 2] [--only NAME ...] [--work 67000]

Draws so many subjects (tests/subjects.py) for each property, prints each violation with the seed that draws the subject
again, and exits 1 if there is one. With less ``--work``, local search times fewer buckets: ``planned`` is made sooner,
and has to find more among the plans of others.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from osfmodel.solve.search import planned
from tests.subjects import PROPERTIES, subject


def violations(name: str, seed: int) -> list[str]:
    """Violations of one property by one subject."""
    return list(PROPERTIES[name](subject(seed)))


def limit(work: int) -> None:
    """Set the buckets that local search times from one plan."""
    planned.WORK = work


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=PROPERTIES, default=list(PROPERTIES))
    parser.add_argument("--work", type=int, default=planned.WORK)
    asked = parser.parse_args()
    seeds, failed = range(asked.seed, asked.seed + asked.subjects), 0
    with ProcessPoolExecutor(asked.jobs, initializer=limit, initargs=(asked.work,)) as pool:
        for name in asked.only:
            count = 0
            for seed, found in zip(seeds, pool.map(partial(violations, name), seeds, chunksize=4), strict=True):
                for words in found:
                    print(f"  seed {seed}: {words}", flush=True)
                count += len(found)
            print(f"{name}: {count} violations in {len(seeds)} subjects from seed {asked.seed}", flush=True)
            failed += count
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
