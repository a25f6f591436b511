"""Tries each behaviour on both modules and says which outcome is not as the document
has it.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import onnxruntime
from differential import running_behaviours  # noqa: F401 - adds its own
from differential.behaviours import BEHAVIOURS, Behaviour
from differential.harness import Outcome, agree, outcome_of
from support.listed_differences import listed_matters

import epctx_core


@dataclass(frozen=True)
class Comparison:
    """A behaviour with both outcomes, and what is wrong with the document about it;
    empty if nothing is.
    """

    behaviour: Behaviour
    theirs: Outcome
    ours: Outcome
    fault: str


def compare(behaviour: Behaviour, folder: Path) -> Comparison:
    """Try one behaviour on both; folders are made in `folder`."""
    theirs = outcome_of(behaviour.act, onnxruntime, folder / "onnxruntime")
    ours = outcome_of(behaviour.act, epctx_core, folder / "epctx")
    same, listed = agree(theirs, ours), behaviour.differs in listed_matters()
    if behaviour.differs and not listed:
        fault = f"the document has no row {behaviour.differs!r}"
    elif same and behaviour.differs:
        fault = f"the row {behaviour.differs!r} is stale: there is no difference"
    elif not same and not behaviour.differs:
        fault = "a difference that the document does not list"
    else:
        fault = ""
    return Comparison(behaviour, theirs, ours, fault)


def main() -> int:
    """Try all, say what differs; 1 if the document is wrong about one."""
    onnxruntime.set_default_logger_severity(4)
    logging.getLogger("epctx").setLevel(logging.CRITICAL)
    vendor = ""
    if find_spec("onnxruntime_qnn") is not None:
        from differential import qnn_behaviours  # noqa: F401 - adds its own

        vendor = f" and onnxruntime-qnn {version('onnxruntime-qnn')}"
    with tempfile.TemporaryDirectory() as folder:
        done = [compare(each, Path(folder) / each.name) for each in BEHAVIOURS]
    faults = [each for each in done if each.fault]
    tried = {each.behaviour.differs for each in done} - {""}
    lines = [
        line
        for each in done
        if each.fault or each.behaviour.differs
        for line in _told(each)
    ]
    modules = f"onnxruntime {onnxruntime.__version__}{vendor}"
    lines.append(
        f"{len(done)} behaviours of {modules}: {len(done) - len(faults)} as the "
        f"document says, {len(faults)} not; {len(tried)} of its "
        f"{len(listed_matters())} rows were tried. The others need more of an EP that "
        "compiles, or are about what onnxruntime does not have."
    )
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if faults else 0


def _told(done: Comparison) -> list[str]:
    entries = ", ".join(map(str, done.behaviour.entries))
    return [
        (
            f"{'FAULT' if done.fault else 'differs'}: "
            f"{done.behaviour.name}{f' (entries {entries})' if entries else ''}"
        ),
        f"    onnxruntime: {done.theirs.shown()}",
        f"    epctx:       {done.ours.shown()}",
        *([f"    {done.fault}"] if done.fault else []),
    ]
