"""Times to the first result of a context model and of its source, in few turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_bench.children import Request, ask_child
from epctx_bench.columns import EPCTX, ONNXRUNTIME
from epctx_bench.settings import BenchSettings
from epctx_core.errors import NoSuchFile

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True)
class FirstResults:
    """Seconds to the first result, one sample for each turn.

    Attributes:
        context: of the context model: create a session by epctx and run it once.
        source: of the source model, the same by onnxruntime's CPU session.
        simulated: names of the context model's EPs that are simulated.
    """

    context: Sequence[float]
    source: Sequence[float]
    simulated: Sequence[str]


def measure_first_results(
    context: str | os.PathLike[str],
    source: str | os.PathLike[str],
    *,
    turns: int = 3,
    time_limit: float = 10.0,
    modules: Iterable[str] | None = None,
) -> FirstResults:
    """Measure the times to the first result of a context model and of its source.

    Each takes place in a fresh process. `bench` measures more, and takes longer.

    Args:
        context: the context model.
        source: the model that it was compiled from.
        turns: turns in which both are measured once.
        time_limit: seconds after which no further turn begins; one always takes place.
        modules: modules that the processes import before the clock runs, such as those
            of a process that has used both models. None for a rehearsal of each, which
            finds them.

    Raises:
        InvalidArgument: turns is not 1 or more.
        NoSuchFile: a model does not exist.
        Fail: a process failed.
    """
    settings = BenchSettings(turns=turns, runs=1)
    models = {EPCTX: Path(context), ONNXRUNTIME: Path(source)}
    for model in models.values():
        if not model.is_file():
            raise NoSuchFile(f"there is no model {str(model)!r}.", path=model)

    end = time.monotonic() + time_limit

    def use_once(engine: str, imported: Sequence[str]) -> dict[str, Any]:
        return ask_child(
            Request(
                task="use",
                engine=engine,
                model=str(models[engine]),
                settings=settings,
                modules=imported,
            )
        )

    given = None if modules is None else list(modules)
    imported = {
        engine: use_once(engine, ())["modules"] if given is None else given
        for engine in models
    }
    samples: dict[str, list[float]] = {engine: [] for engine in models}
    simulated: list[str] = []
    order = list(models)
    for _ in range(turns):
        begun = time.monotonic()
        for engine in order:
            result = use_once(engine, imported[engine])
            samples[engine].append(result["first_result"])
            simulated += result["simulated"]

        # Neither always follows the other.
        order.reverse()
        now = time.monotonic()
        if now + (now - begun) > end:
            break
    return FirstResults(
        context=samples[EPCTX],
        source=samples[ONNXRUNTIME],
        simulated=list(dict.fromkeys(simulated)),
    )
