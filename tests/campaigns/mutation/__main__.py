"""`python tests/campaigns/mutation RESULTS`: which small faults in the core its fast tests
notice.

With --draw, mutants are drawn by a seed; else those of the baseline are looked for,
wherever their functions have moved. Each runs in a copy of the tree: first against the
test that killed it last, then against all of its area. RESULTS are lines of JSON; a run
that was stopped goes on. The baseline says why a mutant that survives may (`why`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from mutation.mutants import Mutant, mutants_of
from support.folders import ROOT

BASELINE = Path(__file__).with_name("baseline.json")
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "demo-output")
LONGEST_RUN = 900
TESTS_FAILED = 1
"""Pytest's exit code."""


@dataclass(frozen=True)
class Area:
    """Modules that are mutated, and the tests that have to notice it: folder and file,
    wherever below `tests`.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "node codec": Area(
        ("context/node.py", "context/dependencies.py"),
        (
            "context/test_node.py",
            "context/test_payloads_read.py",
            "context/test_names_of_files.py",
            "context/test_embedding.py",
            "contract/test_loading.py",
            "contract/test_external_dependencies.py",
            "contract/test_initializers.py",
            "verify/test_damages.py",
        ),
    ),
    "assignment": Area(
        (
            "sessions/assignment.py",
            "sessions/claims.py",
            "graph/partition.py",
        ),
        (
            "graph/test_partition.py",
            "plugin/test_grouping.py",
            "contract_eps/test_exact_claims.py",
            "graph/test_quantization.py",
            "models_breadth/test_claims_within_limits.py",
            "control_flow/test_contract.py",
            "control_flow/test_if.py",
            "contract/test_registration.py",
            "end_to_end/test_bad_eps.py",
            "contract_eps/test_kept_nodes.py",
        ),
    ),
    "routing": Area(
        (
            "sessions/stage_values.py",
            "sessions/routing.py",
            "sessions/load.py",
            "registry/lookup.py",
        ),
        (
            "registry/test_routing.py",
            "registry/test_lookup.py",
            "registry/test_selection.py",
            "runtime/test_routing.py",
            "contract/test_loading_sources.py",
            "contract/test_loading.py",
            "contract/test_callbacks.py",
            "contract_eps/test_kept_nodes.py",
            "registry/test_simulated.py",
            "verify/test_damages.py",
            "registry/test_host_registration.py",
        ),
    ),
    "publication": Area(
        ("publish/*.py", "context/unfinished.py"),
        (
            "publish/test_compiles.py",
            "publish/test_publication.py",
            "publish/test_failing_system.py",
            "publish/test_hostile_staging.py",
            "publish/test_two_processes.py",
        ),
    ),
}


def main() -> int:
    """Run mutants that have no result yet, and say what survived."""
    parser = argparse.ArgumentParser(
        prog="python tests/campaigns/mutation", description=__doc__.splitlines()[0]
    )
    parser.add_argument("results", type=Path)
    parser.add_argument(
        "--draw", type=int, metavar="COUNT", help="draw so many mutants"
    )
    parser.add_argument("--seed", type=int, default=9)
    parser.add_argument(
        "--first",
        type=int,
        metavar="COUNT",
        help="run only so many, a fair sample of all",
    )
    parser.add_argument(
        "--tree", type=Path, default=ROOT, help="the tree to copy; this one by default"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only-tell", action="store_true", help="run nothing")
    parser.add_argument(
        "--write-baseline",
        action="store_true",
        help="take the results for the new baseline",
    )
    given = parser.parse_args()
    known = {
        each["mutant"]: each
        for each in json.loads(BASELINE.read_text("utf-8"))["mutants"]
    }
    names = (
        drawn(given.tree, given.draw, given.seed)
        if given.draw
        else [(each["area"], each["mutant"]) for each in known.values()]
    )
    if not given.only_tell:
        killers = {name: each.get("by", "") for name, each in known.items()}
        run(names[: given.first], given.tree, given.results, given.jobs, killers)
    results = {each["mutant"]: each for each in read(given.results)}
    mutants = [
        results.get(name, {"area": area, "mutant": name, "outcome": "not run"})
        for area, name in names
    ]
    for each in mutants:
        if each["outcome"] == "survived" and "why" in known.get(each["mutant"], {}):
            each["why"] = known[each["mutant"]]["why"]
    tell(mutants)
    if given.write_baseline:
        BASELINE.write_text(
            json.dumps({"seed": given.seed, "mutants": mutants}, indent=1) + "\n",
            "utf-8",
        )
    return 0


def drawn(tree: Path, count: int, seed: int) -> list[tuple[str, str]]:
    """Draw areas and names; the first ones are a fair sample of all."""
    every = sorted(
        (area, mutant.name)
        for area, what in AREAS.items()
        for pattern in what.modules
        for path in (tree / "epctx_core").glob(pattern)
        for mutant in mutants_of(path.read_bytes())
    )
    return random.Random(seed).sample(every, count)  # noqa: S311 - no secret


def run(
    names: list[tuple[str, str]],
    tree: Path,
    results: Path,
    jobs: int,
    killers: Mapping[str, str],
) -> None:
    """Run what has no result, in order, each job in a copy of its own; a line for
    each.
    """
    done = {each["mutant"] for each in read(results)}
    left = [(area, name) for area, name in names if name not in done]
    lock, copies = Lock(), SimpleQueue[Path]()
    with (
        tempfile.TemporaryDirectory(prefix="mutation-") as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for number in range(jobs):
            copy = Path(
                shutil.copytree(tree, Path(folder, str(number)), ignore=LEFT_OUT)
            )
            copies.put(copy)
        places = {
            mutant.name: (path.relative_to(copy), mutant)
            for path in copy.glob("epctx_core/**/*.py")
            for mutant in mutants_of(path.read_bytes())
        }

        def judge(area: str, name: str) -> None:
            copy = copies.get()
            outcome, by = "gone", ""
            if name in places:
                outcome, by = judged_with(
                    copy, area, killers.get(name, ""), *places[name]
                )
            copies.put(copy)
            result = {"area": area, "mutant": name, "outcome": outcome} | (
                {"by": by} if by else {}
            )
            line = json.dumps(result) + "\n"
            with lock, results.open("a", encoding="utf-8") as file:
                file.write(line)

        for area in dict.fromkeys(area for area, _ in left):
            missing = [test for test in AREAS[area].tests if not found(ROOT, test)]
            if missing:
                raise RuntimeError(
                    f"no file below tests is called {', '.join(missing)}, which "
                    f"notice {area}"
                )
            outcome, by = judged(copy, area)
            if outcome != "survived":
                raise RuntimeError(f"the tests of {area} fail without any mutant: {by}")
        list(pool.map(judge, *zip(*left, strict=True)))


def judged_with(
    copy: Path, area: str, killer: str, place: Path, mutant: Mutant
) -> tuple[str, str]:
    """Return what becomes of a mutant; the copy is as before then."""
    path = copy / place
    source = path.read_bytes()
    try:
        _write(path, mutant.applied(source))
        file, _, test = killer.partition("::")
        for module in found(copy, "/".join(file.split("/")[-2:])) if test else ():
            # A test that is not there any more fails in another way.
            if _tested(copy, [f"{module}::{test}"])[0] == TESTS_FAILED:
                return "killed", f"{module}::{test}"
        return judged(copy, area)
    finally:
        _write(path, source)


def _write(path: Path, source: bytes) -> None:
    """Write a module; what was compiled of it is known by size and second, which may be
    the same.
    """
    path.write_bytes(source)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def judged(copy: Path, area: str) -> tuple[str, str]:
    """Run an area's tests; return killed or survived, and the first test that
    failed.
    """
    code, output = _tested(
        copy, [path for test in AREAS[area].tests for path in found(copy, test)]
    )
    if code == 0:
        return "survived", ""
    failed = [
        line.split(" - ")[0]
        for line in output.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    ]
    return "killed", failed[0].split(" ", 1)[
        1
    ] if failed else "it hangs" if code is None else f"exit {code}"


def found(tree: Path, test: str) -> list[str]:
    """Return where a file of tests lies in a tree; nowhere if it came later."""
    return [str(path.relative_to(tree)) for path in tree.glob(f"tests/**/{test}")]


def _tested(copy: Path, tests: list[str]) -> tuple[int | None, str]:
    """Run tests up to the first that fails; return pytest's exit code and what it
    printed.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=60",
        *tests,
    ]
    paths = [copy, *copy.glob("plugins/*/src")]
    # On a CI server hypothesis draws the same each time and has no deadline: a busy
    # machine kills no mutant.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "CI": "1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return done.returncode, done.stdout


def read(results: Path) -> list[dict[str, str]]:
    """Return the results so far; a last line that was cut off is none."""
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def tell(mutants: list[dict[str, str]]) -> None:
    """Print the survivors and how many mutants ended how, by area."""
    outcomes = ("killed", "survived", "gone", "not run")
    lines = [
        f"{each['area']}: {each['mutant']}\n    "
        f"{each.get('why', 'nobody said yet why')}"
        for each in mutants
        if each["outcome"] == "survived"
    ]
    for area in (*AREAS, ""):
        own = [each["outcome"] for each in mutants if area in {each["area"], ""}]
        lines.append(
            f"{area or 'all':14}" + "  ".join(f"{own.count(o):4} {o}" for o in outcomes)
        )
    print(*lines, sep="\n")  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
