"""All models of a folder on one route, in this process: `python -m zoo.routes ROUTE
MODELS WORK [NAME ...]`.

Routes: `plain`; `compile:EPS` for a session with EPs, and the compile to a file and to
an embedded model; `load:EPS` for what that wrote. A line of JSON for each model in
`<kind>.jsonl` says what is wrong with it, how many nodes EPs took, and which ones
onnxruntime gives a vendor's EP beside those.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from support.sim_eps import CPU, OPENVINO, QNN, VITISAI, with_eps
from zoo.exporters.saving import Inputs, read_runs

import epctx_core as epctx
from epctx_core.graph.partition import MOVING

ENABLE_ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
DISABLE_ALL = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
EPS = {
    "qnn": (QNN,),
    "openvino": (OPENVINO,),
    "vitisai": (VITISAI,),
    "all": (VITISAI, QNN, OPENVINO),
}
"""Simulated EPs."""
REAL = {"real-qnn": "QNN", "real-openvino": "OpenVINO"}
"""Those of vendors, which only `make test-vendors` has."""
FORMS = {"file": False, "embedded": True}
NOTHING = "WARNING: nothing was compiled"
UNUSED = "no node of"

TOLERANCES = {"f2": 1e-2, "f4": 1e-4, "f8": 1e-6}
"""How far apart results may be, in parts of the largest value of an output, by its
element type: other kernels and processors add in another order.
"""
QUANTISED = 0.04
"""The same for quantised models, whose steps fall on other sides."""
IN_HALVES = 0.02
"""The same for QNN, which computes in half precision."""


class Warned(logging.Handler):
    """Warnings that epctx logs."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of one."""
        self.found.append(f"{record.levelname}: {record.getMessage()}")


@contextmanager
def noting_problems(found: list[str], step: str) -> Iterator[None]:
    """Add what goes wrong in a step to a list: its error, and its warnings."""
    handler = Warned()
    logging.getLogger("epctx").addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        found += [f"{step}: {warning.message}" for warning in caught]
    except Exception as error:  # noqa: BLE001 - every one is a finding
        found.append(f"{step}: {type(error).__name__}: {error}")
    finally:
        logging.getLogger("epctx").removeHandler(handler)
        found += [f"{step}: {text}" for text in handler.found]


def check_runs(session: epctx.InferenceSession, path: Path, eps: str) -> None:
    """Compare a session's results with those that are stored; where none are, or this
    processor may round otherwise, with onnxruntime's here, optimised or as it is
    written: of a quantised model the optimiser's kernels may give very other numbers.

    Args:
        session: the session.
        path: the source model.
        eps: EPs of the route.
    """
    least = IN_HALVES if eps == "real-qnn" else 0.0
    if "quantised" in path.stem:
        least = QUANTISED
    elif path.stem.endswith("_half"):
        least = max(least, TOLERANCES["f2"])
    for number, run in enumerate(read_runs(path.with_suffix(".npz"))):
        results = session.run(None, run.inputs)
        differences = find_differences(results, run.results, least)
        is_stored = all(result is not None for result in run.results)
        may_round = all("apart" in difference for difference in differences)
        if may_round and (differences or not is_stored):
            for level in (ENABLE_ALL, DISABLE_ALL):
                theirs = run_onnxruntime(path, run.inputs, level)
                if not (differences := find_differences(results, theirs, least)):
                    break
        if differences:
            raise AssertionError(f"run {number}: {'; '.join(differences)}")


def find_differences(
    results: list[Any], expected: list[Any], least: float
) -> list[str]:
    """Return how outputs differ from others, of which some may be unknown."""
    found = []
    for position, (one, other) in enumerate(zip(results, expected, strict=True)):
        if other is not None:
            kind = getattr(one, "dtype", np.dtype("f4")).str[1:]
            part = max(least, TOLERANCES.get(kind, 0.0))
            if difference := find_difference(one, other, part):
                found.append(f"output {position} {difference}")
    return found


def find_difference(result: Any, expected: Any, part: float) -> str:
    """Return how a result differs from another, or nothing.

    Args:
        result: array, or a list of maps.
        expected: as `result`.
        part: of the largest value by which numbers may differ.
    """
    if not isinstance(expected, np.ndarray):
        result, expected = (
            np.array([[*row.values()] for row in rows]) for rows in (result, expected)
        )
    kinds = (result.shape, result.dtype), (expected.shape, expected.dtype)
    is_text = expected.dtype.kind in "OUS"
    if kinds[0] != kinds[1] and not is_text:
        return f"is {kinds[0]} instead of {kinds[1]}"
    if is_text or expected.dtype.kind != "f":
        return "" if result.tolist() == expected.tolist() else "has other values"

    finite = np.isfinite(expected)
    if not np.array_equal(result[~finite], expected[~finite], equal_nan=True):
        return "has other infinities"
    one, other = (each[finite].astype(np.float64) for each in (result, expected))
    apart = np.abs(one - other).max(initial=0) / np.abs(other).max(initial=1e-3)
    return "" if apart <= part else f"is {apart:.2g} apart"


def run_onnxruntime(
    source: Path, inputs: Inputs, level: onnxruntime.GraphOptimizationLevel
) -> list[Any]:
    """Return what onnxruntime gives here."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(source, options, providers=[CPU])
    return list(session.run(None, inputs))


def options_for(eps: str) -> epctx.SessionOptions:
    """Return session options with the EPs of a route."""
    if eps not in REAL:
        return with_eps(*EPS[eps])
    # Only that environment has what this imports.
    from support.vendor_routes import route

    return route(f"epctx with {REAL[eps]}").session_options()


def take_plain(path: Path, _work: Path, _eps: str) -> dict[str, Any]:
    """Run a model on the CPU EP."""
    problems: list[str] = []
    with (
        noting_problems(problems, "session"),
        epctx.InferenceSession(path, providers=[CPU]) as session,
    ):
        check_runs(session, path, "")
    return {"problems": problems}


def recording(options: epctx.SessionOptions) -> epctx.SessionOptions:
    """Return options with which a session knows which EP has which node."""
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def drop_right_warnings(problems: list[str], groups: list[Any]) -> list[str]:
    """Return problems without the warnings of EPs that take nothing, if that is so."""
    used = {group.ep_name for group in groups} - {CPU}
    return [
        problem
        for problem in problems
        # The EPs stand before the first reason.
        if UNUSED not in problem or any(ep in problem.split(" says:")[0] for ep in used)
    ]


def drop_right_shares(problems: list[str], report: epctx.CompileReport) -> list[str]:
    """Return problems without the warnings of EPs that get few nodes, if their number
    is right.
    """
    counts: Counter[str] = Counter()
    for part in report.partitions:
        counts[part.ep] += len([name for name in part.operators if name not in MOVING])
    right = tuple(f"{ep} gets {counts[ep]:,} of " for ep in EPS["all"])
    return [p for p in problems if not any(text in p for text in right)]


def compile_model(path: Path, work: Path, eps: str) -> dict[str, Any]:
    """Run a model with EPs, and compile it for them: from a file, which is removed."""
    problems: list[str] = []
    taken = 0
    names: set[str] = set()
    groups: list[Any] = []
    with (
        noting_problems(problems, "session"),
        epctx.InferenceSession(path, recording(options_for(eps))) as session,
    ):
        check_runs(session, path, eps)
        groups = session.get_provider_graph_assignment_info()
    problems = drop_right_warnings(problems, groups)

    source: Path | bytes
    if eps in REAL:
        # Only that environment has what this imports.
        from support.vendor_routes import route, with_named_nodes

        source = with_named_nodes(path.read_bytes())
    else:
        source = Path(shutil.copy(path, work / f"{path.stem}.source.onnx"))
    for form, embedded in FORMS.items():
        with noting_problems(problems, form):
            report = epctx.ModelCompiler(
                options_for(eps), source, embedded
            ).compile_to_file(work / f"{path.stem}.{form}.onnx")
            taken = sum(part.nodes for part in report.partitions)
            names = {name for part in report.partitions for name in part.node_names}
        problems = drop_right_shares(problems, report)
        if not taken:
            # That warning is right.
            problems = [p for p in problems if NOTHING not in p]

    lacking: set[str] = set()
    if isinstance(source, Path):
        source.unlink()
    else:
        # Where onnxruntime's own compile fails, as with open dimensions and with text,
        # there is nothing to compare with; its exceptions have no base of their own.
        with suppress(Exception):
            theirs = route(f"onnxruntime with {REAL[eps]}").find_nodes(source)
            lacking = theirs - names
    return {"problems": problems, "taken": taken, "lacking": sorted(lacking)}


def load_model(path: Path, work: Path, eps: str) -> dict[str, Any]:
    """Run what `compile_model` wrote."""
    problems: list[str] = []
    groups: list[Any] = []
    for form in FORMS:
        # The simulated EPs are found by what the model says.
        options = options_for(eps) if eps in REAL else epctx.SessionOptions()
        written = work / f"{path.stem}.{form}.onnx"
        with (
            noting_problems(problems, form),
            epctx.InferenceSession(written, recording(options)) as session,
        ):
            check_runs(session, path, eps)
            groups = session.get_provider_graph_assignment_info()
        problems = drop_right_warnings(problems, groups)
    return {"problems": problems}


ROUTES: dict[str, Callable[[Path, Path, str], dict[str, Any]]] = {
    "plain": take_plain,
    "compile": compile_model,
    "load": load_model,
}


def main(route: str, models: str, work: str, *names: str) -> None:
    """Take models of a folder on a route, all or some by name."""
    kind, _, eps = route.partition(":")
    with (Path(work) / f"{kind}.jsonl").open("a", encoding="utf-8") as outcomes:
        for path in sorted(Path(models).glob("*.onnx")):
            if not names or path.stem in names:
                outcome = ROUTES[kind](path, Path(work), eps)
                outcomes.write(f"{json.dumps({'name': path.stem, **outcome})}\n")
                outcomes.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
