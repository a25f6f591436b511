"""Settings of a measurement, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from epctx_core.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """Settings of `epctx_bench.bench`.

    Attributes:
        turns: turns in which every column is measured once.
        time_limit: seconds after which no further turn begins; all models together.
            The first turn always takes place.
        threads: numbers of threads that call one session at the same time.
        batch_sizes: lengths of the first dimension, where the model leaves it open.
        runs: steady runs of each thread in a turn; None for `run_seconds`.
        run_seconds: seconds of steady runs in a turn, for each number of threads and
            each batch size.
        seed: seed of the inputs.
        onnxruntime: True to measure onnxruntime's CPU session of the original model
            too, where onnxruntime is installed.
        config: session options by their key.
        free_dimensions: lengths of open dimensions of the models, by name.
        child_timeout: seconds after which a measuring process is ended and its column
            fails.
    """

    turns: int = 5
    time_limit: float = 40.0
    threads: tuple[int, ...] = (1,)
    batch_sizes: tuple[int, ...] = (1,)
    runs: int | None = None
    run_seconds: float = 0.2
    seed: int = 0
    onnxruntime: bool = True
    config: Mapping[str, str] = field(default_factory=dict)
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    child_timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in ("turns", "runs"):
            _require_positive(name, (getattr(self, name),))
        for name in ("threads", "batch_sizes"):
            numbers = getattr(self, name)
            if not numbers:
                raise InvalidArgument(f"{name} is empty.", hint="Give at least one.")
            _require_positive(name, numbers)
        for name in ("time_limit", "run_seconds", "child_timeout"):
            seconds = getattr(self, name)
            if not seconds >= 0:
                raise InvalidArgument(f"{name} is {seconds}, expected 0 or more.")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON."""
        return {
            **asdict(self),
            "threads": list(self.threads),
            "batch_sizes": list(self.batch_sizes),
            # Readers of schema 1 expect the key.
            "check": False,
        }


def _require_positive(name: str, numbers: tuple[int | None, ...]) -> None:
    for number in numbers:
        if number is not None and number < 1:
            raise InvalidArgument(f"{name} is {number}, expected 1 or more.")
