"""What a check works with: an EP in a registry of its own, short ways to compile and run, and what it takes of the models.

A scene is shared by the checks of one run. Knows no check; what it keeps is what is the same for all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx

from epctx_conformance.models.blocks import BARRIERS, BLOCKS, LARGE_BLOCKS, Block, Piece
from epctx_conformance.models.building import SmallModel
from epctx_conformance.models.structures import chain, parted, single
from epctx_conformance.observing import Act, Watch, observed
from epctx_conformance.table import CheckFailed, Requirements, Skipped
from epctx_core import Explanation, InferenceSession, ModelCompiler, Registry, SessionOptions, explain_model
from epctx_core.plugin import Purpose

if TYPE_CHECKING:
    from epctx_conformance.watched import Watched
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


class Scene(AbstractContextManager["Scene"]):
    """One EP under the kit, and the work that it takes; shared by the checks of one run.

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

    def __exit__(self, *_error: object) -> None:
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
        self, model: SmallModel | Path | bytes, config: Mapping[str, str] | SessionOptions | None = None
    ) -> InferenceSession:
        """Return a session of a model to compile, or of a context model: with the EP, or options that name it."""
        options = config if isinstance(config, SessionOptions) else self.session_options(config)
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

    def expect_run(
        self,
        model: SmallModel,
        what: str,
        given: SmallModel | Path | bytes | InferenceSession | None = None,
        *,
        feeds: Mapping[str, np.ndarray] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Run a model and raise CheckFailed unless the results are those of the CPU EP.

        Args:
            model: what is to be computed.
            what: begins the message.
            given: what is run: a context model that was compiled from the model, or a session; the model if None.
            feeds: inputs; the model's own if None.
            config: session options.
        """
        feeds = model.feeds() if feeds is None else feeds
        if isinstance(given, InferenceSession):
            results = given.run(None, feeds)
        else:
            results = self.run(model if given is None else given, feeds, config)
        self.expect_agreement(model, results, feeds, what)

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

    @cached_property
    def watched(self) -> Watched:
        """What the EP does in a process of its own; see `epctx_conformance.watched`."""
        from epctx_conformance.watched import watch

        return watch(self)

    # -- the work that it takes ------------------------------------------------------------------

    def explain(self, model: SmallModel, *, purpose: Purpose = Purpose.RUN) -> Explanation:
        """Return which nodes of a model the EP takes; nothing is compiled."""
        return explain_model(model.data, self.session_options(), registry=self.registry, purpose=purpose)

    def claimed(self, model: SmallModel) -> list[frozenset[str]]:
        """Return the names of the nodes that the EP takes: a set a partition, and one a node run by a kernel."""
        partitions: dict[int, set[str]] = {}
        kernels = []
        for node in self.explain(model).nodes:
            if node.partition is not None:
                partitions.setdefault(node.partition, set()).add(node.name)
            elif node.kernel:
                kernels.append(frozenset([node.name]))
        return [*map(frozenset, partitions.values()), *kernels]

    def takes(self, block: Block) -> bool:
        """Whether the EP takes a block's operator."""
        claimed = frozenset().union(*self.claimed(single(block)))
        return any(name.startswith(f"{block.operator.lower()}_") for name in claimed)

    @cached_property
    def claimed_blocks(self) -> tuple[Block, ...]:
        """The kit's blocks that the EP takes; see `epctx_conformance.models.blocks`."""
        return tuple(block for block in BLOCKS if self.takes(block))

    @cached_property
    def given_models(self) -> tuple[SmallModel, ...]:
        """The models that the author gave, complete in themselves."""
        found = []
        for number, given in enumerate(self._given):
            proto = onnx.load_from_string(given) if isinstance(given, bytes) else onnx.load(given)
            name = f"given_{number}" if isinstance(given, bytes) else Path(given).stem
            found.append(SmallModel(name, proto))
        return tuple(found)

    @property
    def block(self) -> Block:
        """The block that tells most of those that the EP takes.

        Raises:
            Skipped: it takes none.
        """
        if not self.claimed_blocks:
            raise Skipped("the EP takes none of the kit's small pieces of work")
        return self.claimed_blocks[0]

    @property
    def large_block(self) -> Block:
        """The first block with a large weight that the EP takes.

        Raises:
            Skipped: it takes none.
        """
        for block in LARGE_BLOCKS:
            if self.takes(block):
                return block
        raise Skipped("the EP takes none of the kit's pieces of work with a large weight")

    def block_where(self, what: str, **wanted: object) -> Block:
        """Return the first block that the EP takes whose attributes are the wanted ones.

        Args:
            what: names them in the reason to skip.
            wanted: attribute to value.

        Raises:
            Skipped: it takes none of that kind.
        """
        for block in self.claimed_blocks:
            if all(getattr(block, name) == value for name, value in wanted.items()):
                return block
        raise Skipped(f"the EP takes none of the kit's pieces of work {what}")

    @cached_property
    def _barrier(self) -> Piece | None:
        block, pieces = self.block, 2
        for barrier in BARRIERS.values():
            if len(self.claimed(parted(block, barrier, pieces))) == pieces:
                return barrier
        return None

    @property
    def has_barrier(self) -> bool:
        """Whether there is a `barrier`."""
        return bool(self.claimed_blocks) and self._barrier is not None

    @property
    def barrier(self) -> Piece:
        """Something that the EP does not take, which keeps its pieces of work apart.

        Raises:
            Skipped: it takes all that the kit has, or nothing.
        """
        if self._barrier is None:
            raise Skipped("the EP takes everything that the kit could put between two pieces of its work")
        return self._barrier

    def claimed_models(self) -> list[SmallModel]:
        """Return models of which the EP takes something: one for each block, then those of its author.

        Raises:
            Skipped: there is none.
        """
        found = [single(block) for block in self.claimed_blocks]
        found += [model for model in self.given_models if self.claimed(model)]
        if not found:
            raise Skipped(
                "the EP takes nothing of any model that the kit has; give it some with models=[...]"
            )
        return found

    @cached_property
    def network(self) -> SmallModel:
        """A model for all that does not depend on its structure: two pieces of the EP's work if that can be.

        Raises:
            Skipped: the EP takes nothing.
        """
        if not self.claimed_blocks:
            return self.claimed_models()[0]
        if self._barrier is not None and self.requirements.several_partitions:
            return parted(self.block, self._barrier)
        return chain(self.block)


def disagreement(
    results: Sequence[Any], reference: Sequence[Any], *, tolerance: float, step: float = 0.0
) -> str | None:
    """Say where two lists of results differ first; None if they agree.

    Args:
        results: what is judged.
        reference: what it should be.
        tolerance: the largest difference allowed, as a share of the reference's largest finite number.
        step: a difference that is allowed besides: a step of quantisation.
    """
    if len(results) != len(reference):
        return f"there are {len(results)} results instead of {len(reference)}"
    for place, (result, wanted) in enumerate(zip(results, reference, strict=True)):
        different = _different(result, wanted, tolerance, step)
        if different is not None:
            return f"result {place} {different}"
    return None


def _different(result: Any, wanted: Any, tolerance: float, step: float) -> str | None:
    if not isinstance(result, np.ndarray):
        return None if repr(result) == repr(wanted) else f"is {result!r:.80} instead of {wanted!r:.80}"
    wanted = np.asarray(wanted)
    if result.dtype != wanted.dtype:
        return f"is of type {result.dtype} instead of {wanted.dtype}"
    if result.shape != wanted.shape:
        return f"has the shape {list(result.shape)} instead of {list(wanted.shape)}"
    if wanted.dtype.kind in "OSUb":
        return None if np.array_equal(result, wanted) else "has other elements"
    return _numbers_differ(result, wanted, tolerance, step)


def _numbers_differ(result: np.ndarray, wanted: np.ndarray, tolerance: float, step: float) -> str | None:
    kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
    ours, theirs = result.astype(kind), wanted.astype(kind)
    finite = np.isfinite(theirs)
    if (
        not np.array_equal(ours[~finite], theirs[~finite], equal_nan=True)
        or not np.isfinite(ours[finite]).all()
    ):
        return "has infinities or NaN at other places"
    apart = np.abs(ours[finite] - theirs[finite])
    largest = float(apart.max(initial=0.0))
    allowed = tolerance * float(np.abs(theirs[finite]).max(initial=0.0)) + step * 1.001
    if largest <= allowed:
        return None
    return f"differs by {largest:.3g} where {allowed:.3g} is allowed"
