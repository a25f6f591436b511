"""`python tests/conformance [RESULTS]`: the cases of onnx.backend.test on all routes, compared with the baseline.

Results are kept in RESULTS as lines of JSON; a run that was stopped goes on from there. Ends with 1 on differences.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

from conformance import baseline
from conformance.catalogue import CATALOGUE, NAME
from epctx_conformance.cases import campaign


def main() -> int:
    """Run what was asked for; tell what differs from the baseline."""
    parser = argparse.ArgumentParser(prog="python tests/conformance", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, help="where results are kept; nowhere by default")
    parser.add_argument("--suites", default="*", help=f"a pattern of names of {', '.join(CATALOGUE.suites)}")
    parser.add_argument("--cases", default="*", help="a pattern of names")
    parser.add_argument("--routes", default="*", help="a pattern of names, such as 'qnn.*'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write-baseline", action="store_true", help="take the results for the new baseline")
    given = parser.parse_args()
    routes = [name for name in CATALOGUE.routes if fnmatchcase(name, given.routes)]
    suites = [load for name, load in CATALOGUE.suites.items() if fnmatchcase(name, given.suites)]
    names = [name for load in suites for name in load() if fnmatchcase(name, given.cases)]
    tasks = [(name, route) for name in names for route in routes]
    with tempfile.TemporaryDirectory() as folder:
        kept = given.results or Path(folder, "results.jsonl")
        results = campaign.run_all(tasks, kept, given.jobs, catalogue=NAME)
    if given.write_baseline:
        baseline.BASELINE.write_text(json.dumps(baseline.as_baseline(results), indent=1) + "\n", "utf-8")
    expected = json.loads(baseline.BASELINE.read_text("utf-8"))
    differences = baseline.differences(results, expected)
    ending = f"{len(differences)} differences from the baseline" if differences else "same as the baseline"
    if expected["versions"] != baseline.versions():
        ending += f", which was made with {expected['versions']}; these are {baseline.versions()}"
    print(campaign.table(results), *differences, ending, sep="\n")  # noqa: T201 - a command
    return 1 if differences else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
