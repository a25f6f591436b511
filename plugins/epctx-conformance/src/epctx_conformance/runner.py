"""Runner of checks, for a report or as tests; whatever an EP does in one of them, the
others still run.

Neither pytest nor onnx is imported before a check needs it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_conformance.report import CheckResult, ConformanceReport, Outcome
from epctx_conformance.table import CheckFailed, Requirements, Skipped, chosen_checks
from epctx_core.errors import NotImplementedByProvider
from epctx_core.ext import implemented_hooks

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness
    from epctx_conformance.table import Check
    from epctx_core.plugin import ExecutionProvider


def check_provider(  # noqa: PLR0913 - public: the options of a run of the kit
    provider: type[ExecutionProvider],
    *,
    requirements: Requirements | None = None,
    options: Mapping[str, str] | None = None,
    models: Sequence[str | bytes] = (),
    only: Sequence[str] | None = None,
    full: bool = False,
    progress: Callable[[CheckResult], None] | None = None,
) -> ConformanceReport:
    """Check an EP against the contract.

    Args:
        provider: the EP's class; it need not be installed or registered.
        requirements: the abilities that its author declares; None for all.
        options: the EP's options to check it with.
        models: paths or bytes of models that it takes nodes of, beside the kit's own.
            An EP that takes nothing of the kit's needs them.
        only: groups or names of checks; None for all.
        full: True to run every model that the kit has, not a sample.
        progress: called with each result.

    Returns:
        One result for each check. An error of the EP is a check that failed; none is
        raised.

    Raises:
        ValueError: an unknown name in `only`.

    Examples:
        >>> requirements = Requirements(dynamic_shapes=False)
        >>> report = check_provider(AcmeProvider, requirements=requirements)
        >>> print(report.text())
    """
    from epctx_conformance.harness import Harness

    results = []
    harness = Harness(
        provider, requirements=requirements, options=options, models=models, full=full
    )
    with closing(harness):
        for check in chosen_checks(only):
            results.append(run_check(check, harness))
            if progress is not None:
                progress(results[-1])
    name = getattr(provider, "name", None)
    return ConformanceReport(
        ep=name
        if isinstance(name, str)
        else getattr(provider, "__qualname__", repr(provider)),
        vendor=str(getattr(provider, "vendor", "")),
        results=tuple(results),
    )


def run_check(check: Check, harness: Harness) -> CheckResult:
    """Run one check of an EP and return how it ended; only Ctrl-C passes."""
    lacking = next(
        (need for need in check.needs if not getattr(harness.requirements, need)), None
    )
    if lacking is not None:
        return make_result(
            check,
            (Outcome.SKIPPED, f"its author declares Requirements({lacking}=False)", ""),
        )
    if harness.unavailable:
        return make_result(check, (Outcome.SKIPPED, harness.unavailable, ""))
    return run_in_thread(
        check, lambda: _find_outcome(check, harness), harness.requirements.seconds
    )


def run_in_thread(
    check: Check, judge: Callable[[], tuple[Outcome, str, str]], limit: float
) -> CheckResult:
    """Run one check in a thread of its own, which is left behind if it takes too long.

    Args:
        check: the check.
        judge: runs it, and returns outcome, reason and hint.
        limit: in seconds.
    """
    start = time.perf_counter()
    ended: list[tuple[Outcome, str, str]] = []
    thread = threading.Thread(
        target=lambda: ended.append(judge()),
        name=f"epctx check {check.name}",
        daemon=True,
    )
    thread.start()
    thread.join(limit)
    # Counts only if nothing was appended before.
    hint = (
        "If the EP needs that long, raise Requirements(seconds=...); otherwise find "
        "out why it waits."
    )
    ended.append((Outcome.FAILED, f"the check was not over after {limit:g} s", hint))
    return make_result(check, ended[0], time.perf_counter() - start)


def make_result(
    check: Check, ended: tuple[Outcome, str, str], seconds: float = 0.0
) -> CheckResult:
    """Return the result of a check from outcome, reason and hint."""
    outcome, reason, hint = ended
    return CheckResult(
        group=check.group,
        name=check.name,
        title=check.title,
        outcome=outcome,
        reason=reason,
        hint=hint,
        seconds=seconds,
    )


_UNDECLARED = (
    "If it is not meant to, declare it: Requirements(export=False) for an EP that "
    "only runs models, Requirements(partitions=False) for one of kernels alone; "
    "`--without export` on the command line."
)
_CONTEXT_HOOKS = frozenset({"compile", "get_ep_context_nodes", "load_context"})


def _find_outcome(check: Check, harness: Harness) -> tuple[Outcome, str, str]:
    """Return how a check of an EP ended, why, and what to do."""

    def explain(error: BaseException) -> str:
        if not isinstance(error, NotImplementedByProvider):
            return ""
        missing = _CONTEXT_HOOKS - implemented_hooks(harness.provider).keys()
        return _UNDECLARED if missing else ""

    return judge_call(lambda: check.function(harness), explain)


def judge_call(
    call: Callable[[], None], explain: Callable[[BaseException], str] = lambda _: ""
) -> tuple[Outcome, str, str]:
    """Return how a check ended, why, and what to do.

    Of an error: the last frames of the first cause, unless `explain` has a better hint.
    """
    try:
        call()
    except Skipped as skipped:
        return Outcome.SKIPPED, str(skipped), ""
    except CheckFailed as failed:
        return Outcome.FAILED, failed.message, failed.hint
    except BaseException as error:  # noqa: BLE001 - SystemExit of an EP, too, is a check that failed
        first = error
        while first.__cause__ is not None:
            first = first.__cause__
        frames = traceback.extract_tb(first.__traceback__)[-3:]
        where = " < ".join(
            f"{f.name} (line {f.lineno} of {f.filename})" for f in reversed(frames)
        )
        hint = explain(error) or (f"Raised in {where}." if where else "")
        return Outcome.FAILED, f"{type(error).__name__}: {error}".strip(), hint
    return Outcome.PASSED, "", ""


class ProviderConformance:
    """Base of test classes, which have a test for every check.

    Attributes:
        provider: the EP's class.
        requirements: its abilities.
        options: its options to check it with.
        models: paths or bytes of further models; see `check_provider`.
        only: groups or names of checks; None for all.
        full: True to run every model that the kit has, not a sample.

    Examples:
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
    _harness: ClassVar[Harness]

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Make a test method of each check."""
        super().__init_subclass__(**keywords)
        if not hasattr(cls, "provider"):
            return
        for check in chosen_checks(cls.only):
            setattr(cls, f"test_{check.name}", _make_method(check))

    @classmethod
    def setup_class(cls) -> None:
        """Make the harness that all checks share."""
        from epctx_conformance.harness import Harness

        cls._harness = Harness(
            cls.provider,
            requirements=cls.requirements,
            options=cls.options,
            models=cls.models,
            full=cls.full,
        )

    @classmethod
    def teardown_class(cls) -> None:
        """Remove the files of the checks."""
        cls._harness.close()


def _make_method(check: Check) -> Callable[[ProviderConformance], None]:
    def method(self: ProviderConformance) -> None:
        result = run_check(check, self._harness)
        if result.outcome is Outcome.PASSED:
            return
        import pytest

        if result.outcome is Outcome.SKIPPED:
            pytest.skip(result.reason)
        pytest.fail(f"{result.title}: {result.text}", pytrace=False)

    method.__name__ = f"test_{check.name}"
    method.__doc__ = f"{check.title[:1].upper()}{check.title[1:]}."
    return method
