"""Runs checks one by one, for a report or as tests; whatever an EP does in one of them, the others still run.

Neither pytest nor onnx is imported before a check needs it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_conformance.report import CheckResult, ConformanceReport, Outcome
from epctx_conformance.table import CheckFailed, Requirements, Skipped, chosen_checks
from epctx_core.errors import NotImplementedByProvider
from epctx_core.ext import implemented_hooks

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene
    from epctx_conformance.table import Check
    from epctx_core.plugin import ExecutionProvider


def check_provider(  # noqa: PLR0913 - public: what a run of the kit can be told
    provider: type[ExecutionProvider],
    *,
    requirements: Requirements | None = None,
    options: Mapping[str, str] | None = None,
    models: Sequence[str | bytes] = (),
    only: Sequence[str] | None = None,
    full: bool = False,
    progress: Callable[[CheckResult], None] | None = None,
) -> ConformanceReport:
    """Hold an EP against the contract.

    Args:
        provider: the EP's class; it need not be installed or registered.
        requirements: what its author says it can do; None for everything.
        options: the EP's options to check it with.
        models: paths or bytes of models that it takes work from, beside the kit's own. An EP that takes
            nothing of those needs them.
        only: groups or names of checks; None for all.
        full: True to run every model that the kit has, not a sample.
        progress: called with each result.

    Returns:
        One result a check. What an EP raises is a check that failed; nothing passes to the caller.

    Raises:
        ValueError: `only` names something that is not there.

    Example:
        >>> report = check_provider(AcmeProvider, requirements=Requirements(dynamic_shapes=False))
        >>> print(report.text())
    """
    from epctx_conformance.scene import Scene

    results = []
    with Scene(
        provider, requirements=requirements or Requirements(), options=options, models=models, full=full
    ) as scene:
        for check in chosen_checks(only):
            results.append(run_check(check, scene))
            if progress is not None:
                progress(results[-1])
    name = getattr(provider, "name", None)
    return ConformanceReport(
        ep=name if isinstance(name, str) else getattr(provider, "__qualname__", repr(provider)),
        vendor=str(getattr(provider, "vendor", "")),
        results=tuple(results),
    )


def run_check(check: Check, scene: Scene) -> CheckResult:
    """Run one check and say how it ended; only Ctrl-C passes."""
    start = time.perf_counter()
    lacking = scene.requirements.lacking(check.needs)
    if lacking is not None:
        outcome = (Outcome.SKIPPED, f"its author says Requirements({lacking}=False)", "")
    else:
        outcome = _within(scene.requirements.seconds, check, scene)
    return CheckResult(
        group=check.group,
        name=check.name,
        title=check.title,
        outcome=outcome[0],
        reason=outcome[1],
        hint=outcome[2],
        seconds=time.perf_counter() - start,
    )


_NOT_MEANT_TO = (
    "If it is not meant to, say so: Requirements(export=False) for an EP that only runs models, "
    "Requirements(partitions=False) for one of kernels alone; `--without export` on the command line."
)
_Ended = tuple[Outcome, str, str]


def _within(limit: float, check: Check, scene: Scene) -> _Ended:
    """Run a check in a thread of its own, which is left behind if it takes too long."""
    ended: list[_Ended] = []
    thread = threading.Thread(
        target=lambda: ended.append(_outcome(check, scene)), name=f"epctx check {check.name}", daemon=True
    )
    thread.start()
    thread.join(limit)
    if ended:
        return ended[0]
    return (
        Outcome.FAILED,
        f"it was not over after {limit:g} s",
        "If the EP needs so long, raise Requirements(seconds=...); otherwise look where it waits.",
    )


def _outcome(check: Check, scene: Scene) -> _Ended:
    try:
        check.function(scene)
    except Skipped as skipped:
        return Outcome.SKIPPED, str(skipped), ""
    except CheckFailed as failed:
        return Outcome.FAILED, failed.message, failed.hint
    except BaseException as error:  # noqa: BLE001 - SystemExit of an EP, too, is a check that failed
        return Outcome.FAILED, *_essence(error, scene)
    return Outcome.PASSED, "", ""


def _lacks_hooks(scene: Scene) -> bool:
    return not {"compile", "get_ep_context_nodes", "load_context"} <= implemented_hooks(scene.provider).keys()


def _essence(error: BaseException, scene: Scene) -> tuple[str, str]:
    """Return what was raised, and where below the kit: the last places of the first cause."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    frames = traceback.extract_tb(first.__traceback__)[-3:]
    places = " < ".join(
        f"{frame.name} (line {frame.lineno} of {frame.filename})" for frame in reversed(frames)
    )
    said = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, NotImplementedByProvider) and _lacks_hooks(scene):
        return said, _NOT_MEANT_TO
    return said, f"Raised in {places}." if places else ""


class ProviderConformance:
    """Derive a test class from this one, and it has a test for every check.

    Attributes:
        provider: the EP's class.
        requirements: what it can do.
        options: its options to check it with.
        models: paths or bytes of further models; see `check_provider`.
        only: groups or names of checks; None for all.
        full: True to run every model that the kit has, not a sample.

    Example:
        >>> class TestAcme(ProviderConformance):
        ...     provider = AcmeProvider
        ...     requirements = Requirements(dynamic_shapes=False)
    """

    provider: ClassVar[type[ExecutionProvider]]
    requirements: ClassVar[Requirements] = Requirements()
    options: ClassVar[Mapping[str, str]] = {}
    models: ClassVar[Sequence[str | bytes]] = ()
    only: ClassVar[Sequence[str] | None] = None
    full: ClassVar[bool] = False
    _scene: ClassVar[Scene]

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Make a test method of each check."""
        super().__init_subclass__(**keywords)
        if not hasattr(cls, "provider"):
            return
        for check in chosen_checks(cls.only):
            setattr(cls, f"test_{check.name}", _method(check))

    @classmethod
    def setup_class(cls) -> None:
        """Make what all checks share."""
        from epctx_conformance.scene import Scene

        cls._scene = Scene(
            cls.provider, requirements=cls.requirements, options=cls.options, models=cls.models, full=cls.full
        )

    @classmethod
    def teardown_class(cls) -> None:
        """Remove what checks wrote."""
        cls._scene.close()


def _method(check: Check) -> Callable[[ProviderConformance], None]:
    def method(self: ProviderConformance) -> None:
        result = run_check(check, self._scene)
        if result.outcome is Outcome.PASSED:
            return
        import pytest

        if result.outcome is Outcome.SKIPPED:
            pytest.skip(result.reason)
        pytest.fail(f"{result.title}: {result.text}", pytrace=False)

    method.__name__ = f"test_{check.name}"
    method.__doc__ = f"{check.title[:1].upper()}{check.title[1:]}."
    return method
