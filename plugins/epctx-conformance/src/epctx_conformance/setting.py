"""An EP in a registry of its own, with folders and short ways to compile and run. Knows no model of the kit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from epctx_conformance.agreement import disagreement
from epctx_conformance.models.building import SmallModel
from epctx_conformance.observing import Act, Watch, observed
from epctx_conformance.requirements import Requirements
from epctx_conformance.table import CheckFailed
from epctx_core import InferenceSession, ModelCompiler, Registry, SessionOptions

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np

    from epctx_core import CompileReport
    from epctx_core.plugin import ExecutionProvider


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A context model that was written.

    Attributes:
        path: the context model.
        report: what the compile did.
        model: its source.
    """

    path: Path
    report: CompileReport
    model: SmallModel


class Setting:
    """One EP under the kit.

    Attributes:
        provider: the EP's class.
        requirements: what its author says it can do.
        options: its options.
        full: whether every model is to be run, not a sample.
        root: where folders are made; a temporary folder of its own if none is given.
        registry: knows this EP and no other. Made when first asked for, since a wrong class is refused there.
    """

    def __init__(
        self,
        provider: type[ExecutionProvider],
        *,
        requirements: Requirements | None = None,
        options: Mapping[str, str] | None = None,
        models: Sequence[str | bytes] = (),
        full: bool = False,
        root: Path | None = None,
    ) -> None:
        self.provider = provider
        self.requirements = requirements or Requirements()
        self.options = dict(options or {})
        self.full = full
        self._given = tuple(models)
        self._before: list[type[ExecutionProvider]] = []
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if root is None:  # a check that was left behind may still write while it is removed
            name = "epctx-conformance-"
            self._temporary = tempfile.TemporaryDirectory(prefix=name, ignore_cleanup_errors=True)
            root = Path(self._temporary.name)
        self._root = root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove every folder; where it was made from another one this is the other's to do."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def folder(self) -> Path:
        """Return a new, empty folder that lives as long as this."""
        return Path(tempfile.mkdtemp(dir=self._root))

    @cached_property
    def registry(self) -> Registry:
        """A registry with this EP alone."""
        made = Registry(entry_points=False)
        made.register(self.provider)
        return made

    def precede(self, provider: type[ExecutionProvider]) -> None:
        """Have another EP asked before this one in all that follows."""
        self.registry.register(provider)
        self._before.append(provider)

    # -- short ways ------------------------------------------------------------------------------

    def session_options(self, config: Mapping[str, str] | None = None) -> SessionOptions:
        """Return session options with the EP, and config entries."""
        made = SessionOptions()
        for earlier in self._before:
            made.add_provider(earlier.name)
        made.add_provider(self.provider.name, self.options)
        for key, value in (config or {}).items():
            made.add_session_config_entry(key, value)
        return made

    def session(
        self, model: SmallModel | Path | bytes, config: Mapping[str, str] | None = None
    ) -> InferenceSession:
        """Return a session with the EP: of a model to compile, or of a context model."""
        return self.session_with(model, self.session_options(config))

    def session_with(self, model: SmallModel | Path | bytes, options: SessionOptions) -> InferenceSession:
        """Return a session with options that a check made itself."""
        given = model.data if isinstance(model, SmallModel) else model
        return InferenceSession(given, options, registry=self.registry)

    def run(
        self,
        model: SmallModel | Path | bytes,
        feeds: Mapping[str, np.ndarray],
        config: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Make a session, run it once and close it."""
        with self.session(model, config) as session:
            return session.run(None, feeds)

    def compiler(
        self,
        model: SmallModel | Path,
        *,
        embed: bool = False,
        config: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> ModelCompiler:
        """Return a compiler with the EP."""
        given = model.data if isinstance(model, SmallModel) else model
        return ModelCompiler(self.session_options(config), given, embed, registry=self.registry, **arguments)

    def compile(
        self,
        model: SmallModel,
        *,
        folder: Path | None = None,
        embed: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> Compiled:
        """Compile a model in a folder, a new one if none is given; its source is gone afterwards."""
        source = (folder or self.folder()) / f"{model.name}.onnx"
        source.write_bytes(model.data)
        report = self.compiler(source, embed=embed, config=config).compile_to_file()
        source.unlink()
        return Compiled(path=source.with_name(f"{model.name}_ctx.onnx"), report=report, model=model)

    @staticmethod
    def reference(model: SmallModel, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the CPU EP's results."""
        with InferenceSession(model.data, registry=Registry(entry_points=False)) as session:
            return session.run(None, feeds)

    def expect_agreement(
        self, model: SmallModel, results: Sequence[Any], feeds: Mapping[str, np.ndarray], what: str
    ) -> None:
        """Raise CheckFailed unless results are those of the CPU EP; `what` begins the message."""
        different = disagreement(
            results, self.reference(model, feeds), tolerance=self.requirements.tolerance, step=model.step
        )
        if different is not None:
            raise CheckFailed(
                f"{what} ({model.name}): {different}.",
                hint="If the EP computes with less precision on purpose, set Requirements(tolerance=...).",
            )

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Return one of the same EP with further options."""
        return self._like(self.provider, options)

    def with_provider(self, provider: type[ExecutionProvider]) -> Self:
        """Return one that differs in the EP's class alone."""
        return self._like(provider)

    def observed(self, **acts: Act) -> tuple[Self, Watch]:
        """Return one of the same EP that is watched; see `epctx_conformance.observing`."""
        provider, watch = observed(self.provider, acts)
        return self._like(provider), watch

    def _like(self, provider: type[ExecutionProvider], options: Mapping[str, str] | None = None) -> Self:
        return type(self)(
            provider,
            requirements=self.requirements,
            options={**self.options, **(options or {})},
            models=self._given,
            full=self.full,
            root=self._root,
        )
