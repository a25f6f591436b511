"""Times of a model: of a profile (`epctx run --profile`, `epctx compile --profile`) and
of `epctx bench --json`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_report.measurements import read_json, refuse

if TYPE_CHECKING:
    from epctx_report.cut import Cut
    from epctx_report.measurements import Measurements

_MICROSECOND = 1e-6
_PROFILE = "epctx run --profile"
_BENCH = "epctx bench --json"
_ROWS = (
    "compile",
    "load_cold",
    "load_warm",
    "first_result",
    "first_result_from_start",
    "run",
)


@dataclass(kw_only=True)
class Timings:
    """Times of a model.

    Attributes:
        rows: name, seconds, and what they are of.
        boxes: seconds of a run by number of the box.
        nodes: seconds of a run by number of the node, of nodes that ran alone.
        grouped: nodes outside partitions that ran together with others.
        notes: sentences about what was left out.
    """

    rows: list[dict[str, str | float]] = field(default_factory=list)
    boxes: dict[int, float] = field(default_factory=dict)
    nodes: dict[int, float] = field(default_factory=dict)
    grouped: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def describe(self, cut: Cut) -> dict[str, Any]:
        """Return their form in the page, beside the seconds of boxes."""
        operators: dict[str, tuple[int, float]] = {}
        for node, seconds in self.nodes.items():
            if not cut.boxes[cut.box_of[node]].is_of_ep:
                operator = cut.nodes[node].operator
                count, before = operators.get(operator, (0, 0.0))
                operators[operator] = count + 1, before + seconds

        notes = list(self.notes)
        if self.grouped:
            notes.append(
                f"Operators are those that ran alone: {len(self.grouped):,} more ran "
                "in groups, each of which has one time."
            )
        return {
            "rows": self.rows,
            "operators": [
                {"operator": operator, "count": count, "seconds": time}
                for operator, (count, time) in operators.items()
            ],
            "notes": notes,
        }


def read_timings(cut: Cut, model: Path, measurements: Measurements) -> Timings:
    """Return the times that files have of a model.

    Args:
        cut: its cut.
        model: its path, by which a bench names it.
        measurements: profiles, and the JSON of `epctx bench`.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or it is none of those.
    """
    timings = Timings()
    for trace in measurements.traces:
        path = Path(trace)
        try:
            _add_trace(timings, cut, _read_events(path), path.name)
        except OverflowError as error:
            raise refuse(path, _PROFILE) from error
    if measurements.bench is not None:
        _add_bench(timings, model, Path(measurements.bench))
    return timings


def _read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace that last for a time."""
    data = read_json(path, _PROFILE)
    if not isinstance(data, list):
        raise refuse(path, _PROFILE)
    events = [
        event
        for event in data
        if isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("dur"), int | float)
        and 0 <= event["dur"] < math.inf
        and isinstance(event.get("name"), str)
        and isinstance(event.get("args"), dict)
    ]
    if not any(event.get("cat") == "stage" for event in events):
        raise refuse(path, _PROFILE)
    return events


def _add_trace(
    timings: Timings, cut: Cut, events: Iterable[Mapping[str, Any]], file: str
) -> None:
    """Add the times of a profile, which may be one of several sessions."""
    stages: dict[str, list[float]] = {}
    steps: dict[tuple[int, ...], float] = {}
    lost = 0
    firsts = {graph.path: graph.first for graph in cut.graphs}
    for event in events:
        seconds = event["dur"] * _MICROSECOND
        category = event.get("cat")
        if category in ("stage", "run"):
            stages.setdefault(event["name"], []).append(seconds)
        elif category == "step":
            nodes = _find_nodes(event, cut, firsts)
            lost += not nodes
            steps[nodes] = steps.get(nodes, 0.0) + seconds

    runs = len(stages.get("run", ())) or 1
    steps.pop((), None)
    for nodes, seconds in steps.items():
        _add_step(timings, cut, nodes, seconds / runs)
    for name, times in stages.items():
        # A session may write in several steps, but it reads and runs as a whole.
        of_all, total = "sum", sum(times)
        if name == "run":
            of_all, total = "mean", total / runs
        label = name if len(times) == 1 else f"{name}, {of_all} of {len(times):,}"
        timings.rows.append({"name": label, "seconds": total, "of": file})
    if lost:
        timings.notes.append(
            f"{lost:,} steps of {file} are of no nodes of this model with these EPs: "
            "is it a profile of another model, or of other EPs?"
        )


def _find_nodes(
    step: Mapping[str, Any], cut: Cut, firsts: Mapping[Any, int]
) -> tuple[int, ...]:
    """Return the numbers of a step's nodes; none if the cut does not have them, or not
    with the step's EP and name.
    """
    facts = step["args"]
    try:
        path = tuple((int(index), str(name)) for index, name in facts["graph"])
        first = firsts[path]
        numbers = tuple(first + int(index) for index in facts["nodes"])
        nodes = [cut.nodes[number] for number in numbers if number >= first]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return ()
    if len(nodes) < len(numbers) or not nodes:
        return ()

    # A partition runs whole; what is in none has the name of its first node.
    is_same = nodes[0].name == step["name"]
    if nodes[0].partition is not None:
        is_same = {*numbers} == {*cut.boxes[cut.box_of[numbers[0]]].nodes}
    is_of_ep = {node.ep for node in nodes} == {facts.get("ep")}
    return numbers if is_same and is_of_ep else ()


def _add_step(timings: Timings, cut: Cut, nodes: Sequence[int], seconds: float) -> None:
    """Add a step to its box; one over several boxes is a row of its own."""
    boxes = {cut.box_of[node] for node in nodes}
    if len(nodes) == 1:
        timings.nodes[nodes[0]] = timings.nodes.get(nodes[0], 0.0) + seconds
    elif not cut.boxes[min(boxes)].is_of_ep:
        timings.grouped.update(nodes)
    if len(boxes) == 1:
        (box,) = boxes
        timings.boxes[box] = timings.boxes.get(box, 0.0) + seconds
        return
    ep = cut.nodes[nodes[0]].ep.removesuffix("ExecutionProvider")
    timings.rows.append(
        {
            "name": f"{len(nodes):,} operators from {cut.nodes[nodes[0]].name}",
            "seconds": seconds,
            "of": f"{ep}, in {len(boxes):,} boxes",
        }
    )


def _add_bench(timings: Timings, model: Path, path: Path) -> None:
    data = read_json(path, _BENCH)
    try:
        columns = [
            each for each in data["columns"] if Path(each["model"]).name == model.name
        ]
        rows = [*_iter_bench(columns)]
        noise = data["noise"]
        reason = str(noise["reason"]) if noise["busy"] else ""
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise refuse(path, _BENCH) from error

    timings.rows += rows
    if not rows:
        timings.notes.append(f"{path.name} has no times of {model.name}.")
    elif reason:
        timings.notes.append(reason)


def _iter_bench(
    columns: Iterable[Mapping[str, Any]],
) -> Iterator[dict[str, str | float]]:
    """Yield the medians of columns.

    Raises:
        ValueError: a time is none.
    """
    for column in columns:
        for row in _ROWS:
            found = column["rows"].get(row)
            if found is None or found["unit"] != "s":
                continue
            seconds = float(statistics.median(found["samples"]))
            if not 0 <= seconds < math.inf:
                raise ValueError(row)
            yield {
                "name": row.replace("_", " "),
                "seconds": seconds,
                "of": str(column["name"]),
            }
