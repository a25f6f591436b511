"""Threads and sessions: one session in many threads, many sessions at once.

Every result is compared with the CPU EP's. A pass is not a proof; a failure is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from epctx_conformance.harness import disagreement
from epctx_conformance.table import CheckFailed, CheckFunction, check

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_conformance.harness import Harness
    from epctx_conformance.models import SmallModel
    from epctx_core import InferenceSession

T = TypeVar("T")

THREADS = 4
ROUNDS = 12


def _run_together(work: Callable[[int], T], count: int = THREADS) -> list[T]:
    """Call `work` with 0, 1, … in as many threads, all beginning at once; raise what
    the first of them raised.
    """
    ready = threading.Barrier(count)

    def begin(number: int) -> T:
        ready.wait()
        return work(number)

    with ThreadPoolExecutor(max_workers=count) as pool:
        return [
            future.result()
            for future in [pool.submit(begin, number) for number in range(count)]
        ]


def _make_expectation(
    harness: Harness, model: SmallModel
) -> Callable[[InferenceSession, int, str], None]:
    """Return a function that runs one of several inputs and raises CheckFailed if its
    results are not the CPU EP's.
    """
    feeds = [model.feeds(seed) for seed in range(THREADS)]
    references = [harness.reference(model, each) for each in feeds]

    def expect(session: InferenceSession, number: int, what: str) -> None:
        results = session.run(None, feeds[number])
        tolerance = harness.requirements.tolerance
        different = disagreement(
            results, references[number], tolerance=tolerance, step=model.step
        )
        if different is not None:
            raise CheckFailed(
                f"{what}: {different}.",
                hint=(
                    "`run` is called from many threads and sessions: share no state, "
                    "or lock it."
                ),
            )

    return expect


def _make_check_of_runs(count: int, *, loaded: bool) -> CheckFunction:
    """Return a check in which threads run so many sessions of the network; each thread
    uses one of them.
    """

    def function(harness: Harness) -> None:
        expect = _make_expectation(harness, harness.network)
        source = harness.compile(harness.network) if loaded else harness.network
        with ExitStack() as stack:
            sessions = [
                stack.enter_context(harness.session(source)) for _ in range(count)
            ]

            def work(number: int) -> None:
                for _ in range(ROUNDS):
                    expect(
                        sessions[number % count],
                        number,
                        f"a run beside others, of {count} sessions",
                    )

            _run_together(work)

    return function


for _title, _count, _loaded in (
    ("many threads run one compiled session", 1, False),
    ("many threads run one loaded session", 1, True),
    ("two sessions of one model run at the same time", 2, False),
    ("two loaded sessions of one context model run at the same time", 2, True),
):
    check("concurrency", _title, needs=["concurrency", *["export"] * _loaded])(
        _make_check_of_runs(_count, loaded=_loaded)
    )


def _open_and_close(
    harness: Harness, models: list[SmallModel], sources: list[SmallModel] | list[Path]
) -> None:
    """Make, run and close sessions in as many threads as there are models, three times
    each.
    """
    expected = [_make_expectation(harness, model) for model in models]

    def work(number: int) -> None:
        for _ in range(3):
            with harness.session(sources[number]) as session:
                expected[number](
                    session, number, "a run of a session made and closed beside others"
                )

    _run_together(work, len(models))


@check(
    "concurrency",
    "sessions of different models open at the same time",
    needs=["concurrency"],
)
def check_made_together(harness: Harness) -> None:
    """Each is run and closed while others are made."""
    models = [harness.network, *harness.claimed_models()][:THREADS]
    _open_and_close(harness, models, models)


@check(
    "concurrency", "models compile at the same time", needs=["concurrency", "export"]
)
def check_compiled_together(harness: Harness) -> None:
    """Each thread compiles a model of its own."""
    models = [harness.network, *harness.claimed_models()][:THREADS]
    paths = _run_together(lambda number: harness.compile(models[number]), len(models))
    for model, path in zip(models, paths, strict=True):
        harness.expect_run(model, "compiled beside others", path)


@check(
    "concurrency",
    "many threads load one context model",
    needs=["concurrency", "export"],
)
def check_loaded_together(harness: Harness) -> None:
    """All sessions map the same files."""
    _open_and_close(
        harness,
        [harness.network] * THREADS,
        [harness.compile(harness.network)] * THREADS,
    )


@check("concurrency", "closing a session does not affect others", needs=["concurrency"])
def check_closing(harness: Harness) -> None:
    """Two sessions of one model; the first is run and closed, then the second runs.

    The same after a load.
    """
    export = harness.requirements.export and harness.requirements.partitions
    sources: list[SmallModel | Path] = [
        harness.network,
        *([harness.compile(harness.network)] if export else []),
    ]
    for source in sources:
        with harness.session(source) as kept:
            harness.run(source, harness.network.feeds())
            try:
                harness.expect_run(
                    harness.network, "a run after another session was closed", kept
                )
            except Exception as error:
                raise CheckFailed(
                    f"a session does not run after another one was closed: {error}",
                    hint=(
                        "Release what belongs to this instance alone; count the users "
                        "of what is shared."
                    ),
                ) from error
