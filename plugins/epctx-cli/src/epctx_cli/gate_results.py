"""Results of `epctx gate`: facts of a model, their baseline, and what became worse.

Baselines are reviewed: keys are sorted, and an unchanged model gives equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from epctx_cli.written_files import write_file
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    NoSuchFile,
    one_line,
    quote,
    suggestion,
)
from epctx_core.ext import parse_json, read_small_file

Value: TypeAlias = float | str
Facts: TypeAlias = Mapping[str, Value]
"""Values by their names: what it is, then the EP or output, such as `nodes
CPUExecutionProvider`.
"""

TOLERANCES: Mapping[str, float] = {
    "bytes": 0.05,
    "errors": 1e-4,
    "nodes": 0,
    "partitions": 0,
    "times": 0.05,
}
"""Growth that passes: relative for bytes and times; of nodes on the CPU EP."""
PASSED = "passed"
IMPROVED = "improved"
CHANGED = "changed"
UNDECIDED = "undecided"
REGRESSED = "regressed"
CPU_EP = "CPUExecutionProvider"
INCOMPARABLE = "incomparable"
"""Error of a result that cannot be compared with the source's."""
_COUNTS = frozenset({"bytes", "nodes", "partitions"})
"""Facts that are 0 where there are none."""
_WORST = frozenset({"EP_UNSUPPORTED", "not-ok", INCOMPARABLE, None})
_MOST_BYTES = 16 << 20
_MOST_ENTRIES = 1 << 18
_LARGEST = 1 << 63


@dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of one fact with the baseline.

    Attributes:
        name: name of the fact: what it is, then the EP or output that it is about.
        status: `passed`, `improved`, `changed`, `undecided` or `regressed`, which alone
            fails.
        baseline: its value in the baseline; null without one.
        now: its value; null without one.
        message: the comparison as a sentence.
        command: command that shows more.
    """

    name: str
    status: str
    baseline: Any
    now: Any
    message: str
    command: str


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Result of `epctx gate`.

    Attributes:
        model: the model as it was named.
        baseline: file of the baseline as it was named.
        passed: true if no check is a regression, or the baseline was written.
        summary: the result as a sentence.
        changes: changes of the model and of versions since the baseline was made, as
            sentences.
        checks: comparisons of the facts; none for a new baseline.
        facts: values by their names.
        made_from: the digest of the model, and versions of epctx and of the EPs.
        simulated: those of the EPs that are simulated.
    """

    model: str
    baseline: str
    passed: bool
    summary: str
    changes: Sequence[str]
    checks: Sequence[Check]
    facts: Mapping[str, Any]
    made_from: Mapping[str, str]
    simulated: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Baseline of a model; without facts for a new one.

    Attributes:
        facts: values by their names.
        made_from: the digest of the model, and versions of epctx and of the EPs.
        tolerances: growth that passes.
    """

    facts: Facts = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)
    tolerances: Mapping[str, float] = field(default_factory=lambda: TOLERANCES)


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline, whose file has the old or the new content at any moment.

    Raises:
        Fail: the file cannot be written.
    """
    content = {"schema": 1, **asdict(baseline)}
    write_file(path, f"{json.dumps(content, indent=2, sort_keys=True)}\n".encode())


def load_baseline(path: Path) -> Baseline:
    """Return the baseline in a file.

    Raises:
        NoSuchFile: the file does not exist.
        InvalidArgument: it is not JSON, or no baseline of schema 1.
        Fail: it cannot be read.
    """
    try:
        content = parse_json(read_small_file(path, _MOST_BYTES), _MOST_ENTRIES)
    except FileNotFoundError as error:
        raise NoSuchFile(
            f"the baseline {path} does not exist.",
            path=path,
            hint="Write it with --update, and put it under version control.",
        ) from error
    except OSError as error:
        raise Fail(f"{path} cannot be read: {quote(error)}.", path=path) from error
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"it is not JSON: {quote(error)}.") from error

    whole: Any = content if isinstance(content, dict) else {}
    parts = [whole.get(name) for name in ("facts", "made_from", "tolerances")]
    schema = whole.get("schema")
    # A truth value is an integer in Python.
    is_known = schema == 1 and schema is not True
    if not is_known or not all(isinstance(each, dict) for each in parts):
        raise _refuse(path, "it lacks schema 1 or a part of it.")
    facts, made_from, limits = parts
    _check_values(path, facts, made_from, limits)
    tolerances = {**TOLERANCES, **limits}
    return Baseline(facts=facts, made_from=made_from, tolerances=tolerances)


def _check_values(
    path: Path,
    facts: Mapping[str, Any],
    made_from: Mapping[str, Any],
    limits: Mapping[str, Any],
) -> None:
    """Raise InvalidArgument for values that a baseline cannot have."""
    for name in limits.keys() - TOLERANCES:
        end = suggestion(name, TOLERANCES)
        raise _refuse(path, f"there is no tolerance {name!r:.80}.{end}")

    numbers = [*limits.values(), *(v for v in facts.values() if not _is_text(v))]
    if not all(map(_is_number, numbers)) or not all(map(_is_text, made_from.values())):
        raise _refuse(path, "a value has a type or size that it cannot have.")


def _refuse(path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} is no baseline of epctx gate: {reason}",
        path=path,
        hint="Correct it, or remove it and write a new one with --update.",
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    # A truth value is an integer in Python.
    return type(value) in {int, float} and 0 <= value < _LARGEST


def compare_facts(
    baseline: Baseline, facts: Facts, commands: Mapping[str, str]
) -> list[Check]:
    """Return the comparison of each fact with the baseline.

    Args:
        baseline: the baseline.
        facts: the facts now.
        commands: for each kind of fact, the command that shows more; "" for the others.
    """
    checks = []
    for name in sorted({*baseline.facts, *facts}):
        kind, _, subject = name.partition(" ")
        absent = 0 if kind in _COUNTS else None
        then, now = baseline.facts.get(name, absent), facts.get(name, absent)
        limit = baseline.tolerances.get(kind, 0)
        message = (
            f"{kind} of {one_line(subject)}: {_show(now)}, {_show(then)} in the "
            "baseline"
        )
        if _is_number(then) and _is_number(now) and then != now:
            message += f" ({now - then:+.6g}, tolerance {limit:g})"  # type: ignore[operator]
        checks.append(
            Check(
                name=name,
                status=_judge(name, then, now, limit),
                baseline=then,
                now=now,
                message=message,
                command=commands.get(kind, commands[""]),
            )
        )
    return checks


def _judge(name: str, then: Any, now: Any, limit: float) -> str:
    """Return the status of a value."""
    kind, _, subject = name.partition(" ")
    if then == now:
        return PASSED
    if now in _WORST:
        return REGRESSED
    # Work that goes to another EP is no fault; what none takes is the CPU EP's.
    is_elsewhere = kind in {"partitions", "bytes"} and 0 in {then, now}
    is_moved = kind == "nodes" and subject != CPU_EP
    if is_elsewhere or is_moved or not (_is_number(then) and _is_number(now)):
        return CHANGED
    smaller = min(then, now) if kind == "bytes" else 1
    if abs(now - then) <= limit * smaller:
        return PASSED
    return REGRESSED if now > then else IMPROVED


def _show(value: Value | None) -> str:
    """Return a value for people."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else one_line(value or "absent")
