"""Results of `epctx gate`: facts of a model, their baseline, and what became worse.

Baselines are reviewed: keys are sorted, and an unchanged model gives equal bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from epctx_core.errors import (
    Fail,
    InvalidArgument,
    NoSuchFile,
    one_line,
    quote,
    suggestion,
)
from epctx_core.ext import Publication, parse_json, read_small_file

Facts: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By fact and subject a number, a text, or None for results without a difference."""

TOLERANCES: Mapping[str, float] = {
    "bytes": 0.05,
    "errors": 1e-4,
    "nodes": 0,
    "partitions": 0,
}
"""Growth that passes: relative for bytes; of nodes on the CPU EP."""
PASSED = "passed"
IMPROVED = "improved"
CHANGED = "changed"
UNDECIDED = "undecided"
REGRESSED = "regressed"
CPU_EP = "CPUExecutionProvider"
_WORST = ("EP_UNSUPPORTED", "not-ok")
_ABSENT = "absent"
_MOST_BYTES = 16 << 20
_MOST_ENTRIES = 1 << 18
_LARGEST = 1 << 63


@dataclass(frozen=True, kw_only=True)
class Check:
    """Comparison of one fact with the baseline.

    Attributes:
        fact: name of the fact in the baseline.
        subject: EP or output that it is about.
        status: `passed`, `improved`, `changed`, `undecided` or `regressed`, which alone
            fails.
        baseline: its value in the baseline.
        now: its value.
        message: the comparison as a sentence.
        command: command that shows more.
    """

    fact: str
    subject: str
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
        facts: values by fact and subject.
        made_from: the digest of the model, and versions of epctx and of the EPs.
        simulated: those of the EPs that are simulated.
    """

    model: str
    baseline: str
    passed: bool
    summary: str
    changes: Sequence[str]
    checks: Sequence[Check]
    facts: Mapping[str, Mapping[str, Any]]
    made_from: Mapping[str, str]
    simulated: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Baseline of a model; without facts for a new one.

    Attributes:
        facts: values by fact and subject.
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
    text = json.dumps(content, indent=2, sort_keys=True)
    with Publication(path.parent) as publication:
        publication.create(path.name).write(f"{text}\n".encode())
        publication.commit([path.name])


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
    if whole.get("schema") != 1 or not all(isinstance(each, dict) for each in parts):
        raise _refuse(path, "it lacks schema 1 or a part of it.")
    facts, made_from, limits = parts
    _check_values(path, limits, facts)
    return Baseline(
        facts=facts, made_from=made_from, tolerances={**TOLERANCES, **limits}
    )


def _check_values(path: Path, limits: Any, facts: Any) -> None:
    """Raise InvalidArgument for values that a baseline cannot have."""
    for name in limits.keys() - TOLERANCES:
        end = suggestion(name, TOLERANCES)
        raise _refuse(path, f"there is no tolerance {name!r:.80}.{end}")

    is_right = all(map(_is_number, limits.values())) and all(
        isinstance(values, dict) and all(map(_is_value, values.values()))
        for values in facts.values()
    )
    if not is_right:
        raise _refuse(path, "a value has a type or size that it cannot have.")


def _refuse(path: Path, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} is no baseline of epctx gate: {reason}",
        path=path,
        hint="Correct it, or remove it and write a new one with --update.",
    )


def _is_value(value: Any) -> bool:
    return isinstance(value, str | None) or _is_number(value)


def _is_number(value: Any) -> bool:
    # A truth value is an integer in Python.
    return type(value) in {int, float} and 0 <= value < _LARGEST


def judge(
    baseline: Baseline,
    facts: Facts,
    made_from: Mapping[str, str],
    commands: Mapping[str, str],
    *,
    named: Any,
    simulated: Sequence[str],
) -> GateResult:
    """Return the comparison of facts with a baseline.

    Args:
        baseline: the baseline.
        facts: the facts now.
        made_from: what they were made from.
        commands: by fact, the command that shows more; that of others is the one of "".
        named: arguments of the command: `model`, `baseline` and `update`.
        simulated: the simulated EPs.
    """
    checks = []
    for fact, values in facts.items() if baseline.facts else ():
        known = baseline.facts.get(fact, {})
        absent: Any = 0 if fact in {"nodes", "partitions", "bytes"} else _ABSENT
        for subject in sorted({*known, *values}):
            pair = known.get(subject, absent), values.get(subject, absent)
            limit = baseline.tolerances.get(fact, 0)
            status, message = _judge_value(fact, subject, pair, limit)
            checks.append(
                Check(
                    fact=fact,
                    subject=subject,
                    status=status,
                    baseline=pair[0],
                    now=pair[1],
                    message=message,
                    command=commands.get(fact, commands[""]),
                )
            )
    counts = Counter(check.status for check in checks)
    summary = ", ".join(f"{count} {status}" for status, count in counts.items())
    passed = named.update or not counts[REGRESSED]
    verdict = "passed" if passed else "FAILED"
    before = baseline.made_from
    return GateResult(
        model=named.model,
        baseline=named.baseline,
        passed=passed,
        summary=f"{named.baseline} is written"
        if named.update
        else f"{verdict}: {summary}",
        changes=[
            one_line(f"{name} is {value}, {before[name]} in the baseline")
            for name, value in made_from.items()
            if before.get(name, value) != value
        ],
        checks=checks,
        facts=facts,
        made_from=made_from,
        simulated=simulated,
    )


def _judge_value(
    fact: str, subject: str, pair: tuple[Any, Any], tolerance: float
) -> tuple[str, str]:
    """Return the status of a value, and a sentence."""
    then, now = pair
    message = (
        f"{fact} of {one_line(subject)}: {show(now)}, {show(then)} in the baseline"
    )
    if then == now:
        return PASSED, message
    if now == _ABSENT:
        return UNDECIDED, message
    if not _is_number(then) or not _is_number(now):
        # None is a result that cannot be compared with the source's any more.
        is_worse = now in _WORST or (now is None and then != _ABSENT)
        return REGRESSED if is_worse else CHANGED, message

    message += f" ({now - then:+.6g}, tolerance {tolerance:g})"
    # Work that goes to another EP is no fault; what none takes is the CPU EP's.
    is_elsewhere = fact in {"partitions", "bytes"} and 0 in pair
    if is_elsewhere or (fact == "nodes" and subject != CPU_EP):
        return CHANGED, message
    scales = pair if fact == "bytes" else (1, 1)
    if now > then + tolerance * scales[0]:
        return REGRESSED, message
    is_better = then > now + tolerance * scales[1]
    return IMPROVED if is_better else PASSED, message


def show(value: Any) -> str:
    """Return a value for people."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else one_line(f"{value}")
