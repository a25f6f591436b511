"""Trial of one case in one way, in this process; native code may end it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from epctx_core.errors import EpctxError, NotImplementedByProvider
from epctx_onnxruntime.checking.comparison import compute_digest, difference
from epctx_onnxruntime.checking.result import Result
from epctx_onnxruntime.checking.subject import CPU
from epctx_onnxruntime.checking.ways import NATIVE, Assignment, open_way, open_without

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case, Data

    from epctx_onnxruntime.checking.subject import Subject
    from epctx_onnxruntime.checking.ways import Run, Way

LONGEST_REASON = 400
_RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
"""Operators whose numbers nobody can expect: only types and shapes of their cases'
results count.
"""


def try_case(case: Case, way: Way, subject: Subject) -> Result:
    """Run a case in one way, and judge it.

    Returns:
        The result; its notes have `nodes` (an `Assignment`), `error` (the largest
        difference as a share of the largest expected number), `seconds`, and `lenient`
        if it is within the subject's tolerance alone.
    """
    start = time.perf_counter()
    trial = _Trial(case, way, subject)
    with tempfile.TemporaryDirectory(
        prefix="epctx-check-", ignore_cleanup_errors=True
    ) as folder:
        outcome, reason = trial.run(Path(folder))
        reason = " ".join(reason.replace(folder, ".").split())[:LONGEST_REASON]
    notes = {
        "nodes": asdict(trial.nodes),
        "seconds": round(time.perf_counter() - start, 3),
    }
    if trial.error is not None:
        notes["error"] = float(f"{trial.error:.2g}")
    if trial.is_lenient:
        notes["lenient"] = True
    return Result(
        case=case.name,
        route=str(way),
        outcome=outcome,
        reason=reason,
        claimed=len(trial.nodes.taken),
        bits=trial.bits,
        notes=notes,
    )


class _Trial:
    """A case in one way: what was found so far."""

    def __init__(self, case: Case, way: Way, subject: Subject) -> None:
        self._case = case
        self._way = way
        self._subject = subject
        self._model = case.model()
        self._sets = case.data()
        graph = onnx.ModelProto.FromString(self._model).graph
        self._is_random = any(node.op_type in _RANDOM for node in graph.node)
        self.nodes = Assignment()
        self.error: float | None = None
        self.is_lenient = False
        self.bits = ""

    def run(self, folder: Path) -> tuple[str, str]:
        """Return outcome and reason."""
        try:
            with open_way(self._model, self._way, self._subject, folder) as (
                run,
                self.nodes,
            ):
                wrong = self._run_twice(run) if self.nodes.taken else ""
        except EpctxError as error:
            if self._way.name == NATIVE and isinstance(error, NotImplementedByProvider):
                return "unclaimed", error.message
            return self._explain("refused", f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no base of their own
            outcome = "refused" if self._way.name == NATIVE else "raised"
            return self._explain(outcome, f"{type(error).__name__}: {error}")
        nodes = self.nodes
        if not nodes.taken:
            return "unclaimed", "the EP takes no node"
        if nodes.ran == 0:
            others = ", ".join(nodes.elsewhere) or "nothing"
            reason = (
                f"it takes {len(nodes.taken)} nodes, but runs none: {others} ran on "
                "other EPs instead"
            )
            return "unclaimed", reason
        return self._explain("wrong", wrong) if wrong else ("passed", "")

    def _run_twice(self, run: Run) -> str:
        """Run each set of inputs two times; return the first fault, or an empty
        text.
        """
        results = []
        for data in self._sets:
            first = run(None, data.inputs)
            kept = deepcopy(first)
            if fault := self._find_fault(first, data):
                return fault
            if fault := self._find_fault(run(None, data.inputs), data):
                return f"in the second run, {fault}"
            if compute_digest(first) != compute_digest(kept):
                return "the second run changes results of the first"
            results += kept
        self.bits = compute_digest(results)
        return ""

    def _find_fault(self, outputs: Sequence[Any], data: Data) -> str:
        if data.outputs and len(outputs) != len(data.outputs):
            return f"{len(outputs)} outputs instead of {len(data.outputs)}"
        for number, (value, expected) in enumerate(
            zip(outputs, data.outputs, strict=False)
        ):
            if self._is_random:
                value, expected = np.zeros_like(value), np.zeros_like(expected)  # noqa: PLW2901 - type and shape are left
            error = measure_error(value, expected)
            if error is not None:
                self.error = max(self.error or 0.0, error)
            what = difference(value, expected, self._case.for_output(number))
            if what and error is not None and error <= self._subject.tolerance:
                self.is_lenient = True
            elif what:
                size = "" if error is None else f", off by {error:.2g} of the largest"
                return f"output {number}: {what}{size}"
        return ""

    def _explain(self, outcome: str, reason: str) -> tuple[str, str]:
        """Return the outcome of a failure with that of the host's CPU EP: what that
        cannot do right, too, says nothing.
        """
        cpu, refusal = self._ask_cpu()
        if outcome == "refused" and refusal and not self.nodes.taken:
            return (
                "unclaimed",
                f"{self._way.host} refuses it without the EP, too: {refusal}",
            )
        if self._subject.plugin is not None and self._subject.plugin.ep == CPU:
            return outcome, reason
        name = f"the CPU EP of {self._way.host}"
        if outcome == "wrong" and cpu.startswith("is wrong"):
            shown = f"it shows nothing, as {name} {cpu}; with the EP, {reason}"
            return "unclaimed", shown
        start = reason[: LONGEST_REASON - 80]
        return outcome, f"{start}; {name} {cpu}"

    def _ask_cpu(self) -> tuple[str, str]:
        """Return the outcome without the EP, and the refusal if it is one."""
        other = _Trial(self._case, self._way, self._subject)
        try:
            session = open_without(self._model, self._way)
            faults = [
                other._find_fault(session.run(None, data.inputs), data)
                for data in self._sets
            ]
        except Exception as error:  # noqa: BLE001 - of onnxruntime, or of epctx
            kind = type(error).__name__
            return f"refuses it ({kind})", f"{kind}: {error}"
        wrong = next(filter(None, faults), "")
        return (f"is wrong, too ({wrong})" if wrong else "passes"), ""


def measure_error(result: Any, expected: Any) -> float | None:
    """Return the largest difference as a share of the largest expected number; None
    where that tells nothing.

    Other shapes, types, infinities or NaNs than expected are no matter of size.
    """
    arrays = (result, expected)
    if not all(
        isinstance(array, np.ndarray) and array.dtype.kind in "fiuV" for array in arrays
    ):
        return None
    if (
        result.shape != expected.shape
        or result.dtype != expected.dtype
        or not expected.size
    ):
        return None
    try:
        a = result.astype(np.float64)
        b = expected.astype(np.float64)
    except (TypeError, ValueError):
        return None
    finite = np.isfinite(b)
    special = np.where(finite, 0, b)
    special_of_result = np.where(np.isfinite(a), 0, a)
    if not np.array_equal(special, special_of_result, equal_nan=True):
        return None

    if not finite.any():
        return 0.0
    off = np.abs(a - b, where=finite, out=np.zeros_like(a)).max()
    largest = np.abs(b[finite]).max()
    return float(off / largest) if largest else float(off > 0)
