"""`python tests/backend [RESULTS]`: the cases of onnx.backend.test on all routes, compared with the baseline.

Results are kept in RESULTS as lines of JSON; a run that was stopped goes on from there. Ends with 1 on differences.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import os
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "api"))

import onnxruntime
from backend import campaign
from backend.cases import cases
from backend.routes import ROUTES, run

SECONDS_FOR_A_CASE = 120


def main() -> int:
    """Run what was asked for; tell what differs from the baseline."""
    parser = argparse.ArgumentParser(prog="python tests/backend", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, help="where results are kept; nowhere by default")
    parser.add_argument("--cases", default="*", help="a pattern of names")
    parser.add_argument("--routes", default="*", help="a pattern of names, such as 'qnn.*'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--write-baseline", action="store_true", help="take the results for the new baseline")
    given = parser.parse_args()
    routes = [name for name in map(str, ROUTES) if fnmatchcase(name, given.routes)]
    tasks = [(name, route) for name in cases() if fnmatchcase(name, given.cases) for route in routes]
    with tempfile.TemporaryDirectory() as folder:
        results = campaign.run_all(tasks, given.results or Path(folder, "results.jsonl"), given.jobs)
    if given.write_baseline:
        campaign.BASELINE.write_text(json.dumps(campaign.as_baseline(results), indent=1) + "\n", "utf-8")
    baseline = json.loads(campaign.BASELINE.read_text("utf-8"))
    differences = campaign.differences(results, baseline)
    ending = f"{len(differences)} differences from the baseline" if differences else "same as the baseline"
    if baseline["versions"] != campaign.versions():
        ending += f", which was made with {baseline['versions']}; these are {campaign.versions()}"
    print(campaign.table(results), *differences, ending, sep="\n")  # noqa: T201 - a command
    return 1 if differences else 0


def run_child() -> None:
    """Run the tasks that stand on stdin; write a line for each."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    onnxruntime.set_default_logger_severity(4)
    logging.getLogger("epctx").setLevel(logging.CRITICAL)
    tasks, routes = json.load(sys.stdin), {str(route): route for route in ROUTES}
    print("ready", file=lines, flush=True)
    for name, name_of_route in tasks:
        route = routes[name_of_route]
        faulthandler.dump_traceback_later(SECONDS_FOR_A_CASE, exit=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            result = run(cases()[name], route, Path(folder))
        print(json.dumps(result.as_dict()), file=lines, flush=True)
    faulthandler.cancel_dump_traceback_later()


if sys.argv[1:] == ["--child"]:
    run_child()
else:
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
