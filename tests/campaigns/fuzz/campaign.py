"""Run many cases and print what became of them: `python -m fuzz.campaign FIRST COUNT`
with `tests` and `tests/campaigns` on the path.

Ctrl-C ends it and prints what there is.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from fuzz.isolated import Results, Worker
from fuzz.seeds import write_seeds


def main(first: int, count: int) -> int:
    """Return 1 if there was a fault."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        write_seeds(seeds)
        results = Results()
        with (
            Worker(seeds, Path(folder) / "case") as worker,
            contextlib.suppress(KeyboardInterrupt),
        ):
            worker.run(range(first, first + count), results)
    print(  # noqa: T201
        json.dumps(
            {"cases": results.cases, **dict(sorted(results.outcomes.items()))}, indent=1
        )
    )
    for fault in results.faults:
        print(fault)  # noqa: T201
    return bool(results.faults)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
