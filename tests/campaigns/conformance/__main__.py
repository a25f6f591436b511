"""`python tests/campaigns/conformance [RESULTS]`: ONNX's cases and what is made of them on all
routes, compared with known failures.

Results are kept in RESULTS as lines of JSON; a run that was stopped goes on from there.
Ends with 1 if anything is not as tests/campaigns/conformance/known_failures.toml says: a failure
that is new, a known one that passes, another outcome with onnxruntime alone, a known
failure of a case that does not exist, or a smaller share of the quantised twins claimed
and right than there has to be.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from conformance import documented_numbers, shares, wheels
from conformance.catalogue import CATALOGUE, LEFT_OUT, NAME, TWINS, is_asked
from conformance.known_failures import find_differences, read_known_failures, versions
from conformance.programs import load_programs
from conformance.routes import ONNXRUNTIME
from conformance.twins import read_index
from epctx_onnxruntime.checking import campaign

from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from epctx_onnxruntime.checking.result import Result


OUTCOMES = (
    "passed",
    "wrong",
    "differs",
    "refused",
    "raised",
    "crashed",
    "hung",
    "unclaimed",
)


def main() -> int:
    """Run what was asked for; tell what is not as known."""
    parser, given = _parse()
    began = time.monotonic()
    suites = {
        name: load()
        for name, load in CATALOGUE.suites.items()
        if _is_chosen(name, given.suites)
    }
    names = [name for cases in suites.values() for name in cases]
    # What onnxruntime does is part of what is known.
    routes = [
        name
        for name in CATALOGUE.routes
        if _is_chosen(name, f"{ONNXRUNTIME},{given.routes}")
    ]
    tasks = [
        (name, route)
        for suite, cases in suites.items()
        for name in cases
        if _is_chosen(name, given.cases)
        for route in routes
        if (suite, route) not in LEFT_OUT
        and is_asked(suite, name, CATALOGUE.routes[route])
    ]
    if not tasks:
        parser.error(
            "no case on a route has names of these patterns: --suites, --cases, "
            "--routes."
        )
    if not load_programs().keys().isdisjoint(name for name, _ in tasks):
        try:
            print("Networks out of", *wheels.download(), sep="\n  ")  # noqa: T201 - a command
        except wheels.WheelsMissing as error:
            parser.exit(2, f"{error}\n")
    with tempfile.TemporaryDirectory() as folder:
        kept = given.results or Path(folder, "results.jsonl")
        try:
            results = campaign.run_all(tasks, kept, given.jobs, catalogue=NAME)
        except InvalidArgument as error:
            parser.exit(2, f"{error}\n")
    if given.write_docs:
        documented_numbers.write(results, suites, block=given.write_docs)
    shown = [make_table(results), *documented_numbers.summarise(results, suites)]
    print(*shown, f"{(time.monotonic() - began) / 60:.1f} minutes", sep="\n")  # noqa: T201 - a command
    index = read_index(TWINS) if "twins" in suites else None
    if index is not None:
        print(f"\n{shares.describe(results, index)}\n")  # noqa: T201 - a command
    lacking = shares.find_lacking(results, index)
    return _compare(
        results, names if len(suites) == len(CATALOGUE.suites) else None, lacking
    )


def make_table(results: Iterable[Result]) -> str:
    """Return how many cases ended how, by route; "claimed" counts those of which EPs
    took a node.
    """
    counts = Counter(
        (r.route, what)
        for r in results
        for what in (r.outcome, "claimed" * bool(r.claimed))
    )
    heads = (*OUTCOMES, "claimed")
    titles = "".join(f"{head:>10}" for head in heads)
    lines = [f"{'route':20}{titles}"]

    for route in dict.fromkeys(route for route, _ in counts):
        numbers = "".join(f"{counts[route, head]:10}" for head in heads)
        lines.append(f"{route:20}{numbers}")
    return "\n".join(lines)


def _parse() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python tests/campaigns/conformance", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "results",
        nargs="?",
        type=Path,
        help="where results are kept; nowhere by default",
    )
    parser.add_argument(
        "--suites",
        default="*",
        help=f"patterns, with commas, of names of {', '.join(CATALOGUE.suites)}",
    )
    parser.add_argument("--cases", default="*", help="patterns of names")
    parser.add_argument(
        "--routes", default="*", help="patterns of names, such as 'qnn.*,*.direct'"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument(
        "--write-docs",
        choices=documented_numbers.PAGES,
        help="write the numbers into this block of the documentation",
    )
    return parser, parser.parse_args()


def _is_chosen(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split(","))


def _compare(
    results: Sequence[Result], exist: Sequence[str] | None, lacking: Sequence[str]
) -> int:
    """Tell what is not as known, and what is lacking; return 1 if anything is."""
    known = read_known_failures()
    differences = [*find_differences(results, known, exist), *lacking]
    ending = f"{len(differences)} differences from what" if differences else "all as"
    ending += f" the {len(known.entries)} entries of known failures say"
    if known.versions != versions():
        ending += f", which were seen with {known.versions}; these are {versions()}"
    print(*differences, ending, sep="\n")  # noqa: T201 - a command
    return 1 if differences else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
