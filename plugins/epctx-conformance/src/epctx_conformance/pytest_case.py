"""The kit as a test class for an EP's own tests. pytest is imported when a check ends badly, not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from epctx_conformance.report import Outcome
from epctx_conformance.requirements import Requirements

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene
    from epctx_conformance.table import Check
    from epctx_core.plugin import ExecutionProvider


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
        from epctx_conformance.table import chosen_checks

        for check in chosen_checks(cls.only):
            setattr(cls, f"test_{check.name}", _method(check))

    @classmethod
    def setup_class(cls) -> None:
        """Make what all checks share."""
        from epctx_conformance.scene import Scene

        cls._scene = Scene(
            cls.provider,
            requirements=cls.requirements,
            options=cls.options,
            models=cls.models,
            full=cls.full,
        )

    @classmethod
    def teardown_class(cls) -> None:
        """Remove what checks wrote."""
        cls._scene.close()


def _method(check: Check) -> Callable[[ProviderConformance], None]:
    def method(self: ProviderConformance) -> None:
        from epctx_conformance.runner import run_check

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
