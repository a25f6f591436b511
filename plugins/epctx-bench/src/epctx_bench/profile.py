"""Profile of sessions and compiles: the host plugin `profile`, which records what it
observes as events of a Chrome trace, such as Perfetto shows.

`SessionOptions.enable_profiling` adds it to a session; an object that is given to
`SessionOptions.add_host_plugin` records all sessions and compiles that have it.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

MOST_EVENTS: Final = 1_000_000
"""Events that a profile has at most, as in onnxruntime: those of later work are counted
alone.
"""

_MICROSECOND = 1000
"""In nanoseconds; times of a Chrome trace are microseconds."""
_LONGEST_TEXT = 1000
_MOST_ITEMS = 1000
_DEEPEST = 4
"""Bounds of each fact: what EPs say is kept as long as the session."""


class Profile:
    """Host plugin that records a profile.

    Events are named after the stage (`read`, `partition`, `compile`, `load`, ...; their
    category is `stage`), the hook (`hook`), the partition, node or group of a run
    (`step`), and what EPs mark by `ProviderContext.span` (`ep`). Their arguments have
    the EP, shapes, and graph and indices of the nodes, as `epctx explain --json` has
    them.

    Attributes:
        start_time_ns: when it was made, as `time.monotonic_ns` counts.
        lost: events that were not recorded, because there were `MOST_EVENTS` before.

    Examples:
        >>> profile = Profile()
        >>> options.add_host_plugin(profile)
        >>> with InferenceSession("model_ctx.onnx", options) as session:
        ...     session.run(None, feeds)
        >>> profile.write("profile.json")
    """

    def __init__(self) -> None:
        self.start_time_ns = time.monotonic_ns()
        self._events: list[dict[str, Any]] = []
        self._threads: dict[int, str] = {}
        self.lost = 0
        self._path: str | None = None

    @contextmanager
    def span(
        self, name: str, category: str, facts: Mapping[str, object]
    ) -> Iterator[None]:
        """Record the time of a block, called by the core; see
        `SessionOptions.add_host_plugin`.
        """
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self._add(name, category, facts, begin)

    def _add(
        self, name: str, category: str, facts: Mapping[str, object], begin: int
    ) -> None:
        end = time.monotonic_ns()
        if self._path is not None:
            return
        if len(self._events) >= MOST_EVENTS:
            # Of two threads that count at once, one may be left out.
            self.lost += 1
            return
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        self._events.append(
            {
                "name": name,
                "cat": category,
                "ph": "X",
                "ts": (begin - self.start_time_ns) / _MICROSECOND,
                "dur": (end - begin) / _MICROSECOND,
                "pid": os.getpid(),
                "tid": thread,
                "args": {key: _to_json(value) for key, value in facts.items()},
            }
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the events of a Chrome trace: names of processes and threads, then
        what was recorded, in the order of time.
        """
        names = [_make_name("process_name", 0, name="epctx")]
        for thread, name in [*self._threads.items()]:
            names.append(_make_name("thread_name", thread, name=name))
        if self.lost:
            text = f"{self.lost} later events are missing"
            names.append(_make_name("process_labels", 0, labels=text))
        # What encloses another one ends later, and comes first in a trace.
        recorded = sorted([*self._events], key=lambda e: (e["ts"], -e["dur"]))
        return names + recorded

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as it is now.

        Raises:
            OSError: the file cannot be written.
        """
        _write(Path(path), self.events(), "w")

    def end(self, prefix: str) -> str:
        """Write the profile into `<prefix>_<date>_<time>.json`, which no earlier one
        has; return its path. Nothing is recorded any more, and a further call returns
        the same path.

        Called by the core for `end_profiling`, and when the session is closed.
        """
        stem = f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        # Profiles of one second get numbers.
        numbers = itertools.count(2)
        path = f"{stem}.json"
        while self._path is None:
            try:
                _write(Path(path), self.events(), "x")
                self._path = path
            except FileExistsError:
                path = f"{stem}_{next(numbers)}.json"
        return self._path


def _make_name(kind: str, thread: int, **names: str) -> dict[str, Any]:
    """Return the event that names this process or one of its threads."""
    return {
        "name": kind,
        "ph": "M",
        "pid": os.getpid(),
        "tid": thread,
        "args": names,
    }


def _write(path: Path, events: Sequence[Mapping[str, Any]], mode: str) -> None:
    with path.open(mode, encoding="utf-8") as file:
        # A line each: such files are searched by people, too.
        lines = ",\n".join(map(json.dumps, events))
        file.write(f"[\n{lines}\n]\n")


def _to_json(value: object, depth: int = 0) -> object:
    """Return a fact as JSON has it; a short text for what it does not know, and for
    what is nested deeply.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if depth < _DEEPEST and isinstance(value, Mapping):
        items = itertools.islice(value.items(), _MOST_ITEMS)
        return {str(key): _to_json(item, depth + 1) for key, item in items}
    if depth < _DEEPEST and isinstance(value, Sequence):
        return [_to_json(item, depth + 1) for item in value[:_MOST_ITEMS]]
    return f"a {type(value).__name__}"
