"""Times of a model: of a profile (`epctx run --profile`, `epctx compile --profile`) and
of `epctx bench --json`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument, NoSuchFile

if TYPE_CHECKING:
    from os import PathLike

    from epctx_report.cut import Cut

_MICROSECOND = 1e-6
_ROWS = ("compile", "load_cold", "load_warm", "first_result", "run")


@dataclass(kw_only=True)
class Timings:
    """Times of a model.

    Attributes:
        rows: name, seconds, and what they are of.
        boxes: seconds of a run by number of the box.
        nodes: seconds of a run by number of the node, of nodes that ran alone.
        operators: number of nodes and seconds of a run by operator, of those nodes.
        notes: sentences about what was left out.
    """

    rows: list[dict[str, str | float]] = field(default_factory=list)
    boxes: dict[int, float] = field(default_factory=dict)
    nodes: dict[int, float] = field(default_factory=dict)
    operators: dict[str, tuple[int, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any] | None:
        """Return their form in the page; None if there are none."""
        if not self.rows and not self.boxes and not self.notes:
            return None
        by_time = sorted(self.boxes.items(), key=lambda item: -item[1])
        operators = sorted(self.operators.items(), key=lambda item: -item[1][1])
        return {
            "rows": self.rows,
            "partitions": [{"box": box, "seconds": time} for box, time in by_time],
            "operators": [
                {"operator": operator, "count": count, "seconds": time}
                for operator, (count, time) in operators
            ],
            "notes": self.notes,
        }


def read_timings(
    cut: Cut,
    name: str,
    trace: str | PathLike[str] | None,
    bench: str | PathLike[str] | None,
) -> Timings:
    """Return the times that files have of a model.

    Args:
        cut: its cut.
        name: file name of the model, by which a bench names it.
        trace: a profile, or None.
        bench: the JSON of `epctx bench`, or None.

    Raises:
        NoSuchFile, InvalidArgument: there is no such file, or it is none of those.
    """
    timings = Timings()
    if trace is not None:
        _add_trace(timings, cut, _read_events(Path(trace)), Path(trace).name)
    if bench is not None:
        _add_bench(timings, name, Path(bench))
    return timings


def _read_json(path: Path, expected: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise NoSuchFile(f"there is no file {str(path)!r}.", path=path) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"{str(path)!r} cannot be read as JSON: {error}.",
            path=path,
            hint=f"Give a file that {expected} wrote.",
        ) from error


def _refuse(path: Path, expected: str) -> InvalidArgument:
    return InvalidArgument(
        f"{str(path)!r} is not of the form that {expected} writes.",
        path=path,
        hint=f"Give a file that {expected} wrote.",
    )


def _read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a Chrome trace that last for a time."""
    expected = "epctx run --profile"
    data = _read_json(path, expected)
    if isinstance(data, dict):
        data = data.get("traceEvents")
    if not isinstance(data, list):
        raise _refuse(path, expected)
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
        raise _refuse(path, expected)
    return events


def _add_trace(
    timings: Timings, cut: Cut, events: Iterable[Mapping[str, Any]], file: str
) -> None:
    runs = 0
    stages: dict[str, float] = {}
    firsts = {graph.path: graph.first for graph in cut.graphs}
    steps: list[tuple[list[int], float]] = []
    for event in events:
        seconds = event["dur"] * _MICROSECOND
        category = event.get("cat")
        if category == "run":
            runs += 1
            stages["run"] = stages.get("run", 0.0) + seconds
        elif category == "stage":
            stages[event["name"]] = stages.get(event["name"], 0.0) + seconds
        elif category == "step":
            steps.append((_find_nodes(event["args"], firsts, len(cut.nodes)), seconds))

    if runs > 1:
        stages["run"] /= runs
        timings.notes.append(f"The times of a run are the means of {runs} runs.")
    timings.rows += [
        {"name": name, "seconds": seconds, "of": file}
        for name, seconds in stages.items()
    ]
    lost = 0
    for nodes, seconds in steps:
        lost += not nodes
        if nodes:
            _add_step(timings, cut, nodes, seconds / max(runs, 1))
    if lost:
        timings.notes.append(
            f"{lost} steps of {file} are of no node of this model: is it of another "
            "one, or of other EPs?"
        )


def _find_nodes(
    facts: Mapping[str, Any], firsts: Mapping[Any, int], count: int
) -> list[int]:
    """Return the numbers of a step's nodes; none if the cut does not have them."""
    try:
        path = tuple((int(index), str(name)) for index, name in facts["graph"])
        first = firsts[path]
        nodes = [first + int(index) for index in facts["nodes"]]
    except (KeyError, TypeError, ValueError):
        return []
    return nodes if all(0 <= node < count for node in nodes) else []


def _add_step(timings: Timings, cut: Cut, nodes: list[int], seconds: float) -> None:
    box = cut.box_of[nodes[0]]
    timings.boxes[box] = timings.boxes.get(box, 0.0) + seconds
    if len(nodes) == 1:
        node = nodes[0]
        if node not in timings.nodes:
            operator = cut.nodes[node].operator
            count, _ = timings.operators.get(operator, (0, 0.0))
            timings.operators[operator] = count + 1, 0.0
        timings.nodes[node] = timings.nodes.get(node, 0.0) + seconds
        operator = cut.nodes[node].operator
        count, before = timings.operators[operator]
        timings.operators[operator] = count, before + seconds


def _add_bench(timings: Timings, name: str, path: Path) -> None:
    expected = "epctx bench --json"
    data = _read_json(path, expected)
    try:
        rows = list(_iter_bench(data, name))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise _refuse(path, expected) from error
    timings.rows += rows
    if not rows:
        timings.notes.append(f"{path.name} has no times of {name}.")
    elif data["noise"]["busy"]:
        timings.notes.append(str(data["noise"]["reason"]))


def _iter_bench(data: Mapping[str, Any], name: str) -> Iterator[dict[str, str | float]]:
    """Yield the medians of the columns of a model."""
    for column in data["columns"]:
        if Path(column["model"]).name != name:
            continue
        for row in _ROWS:
            found = column["rows"].get(row)
            if found is None or found["unit"] != "s":
                continue
            seconds = float(statistics.median(found["samples"]))
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{row} of {column['name']} took {seconds} s")
            yield {
                "name": row.replace("_", " "),
                "seconds": seconds,
                "of": str(column["name"]),
            }
