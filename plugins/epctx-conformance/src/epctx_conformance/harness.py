"""Harness of the checks of one run: an EP in a registry of its own, short ways to
compile and run, and the work that it takes.

Knows no check; it keeps only results that are the same for all checks.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx

from epctx_conformance.explanation import Explanation, explain_model
from epctx_conformance.fork_server import ForkServer
from epctx_conformance.models import (
    BARRIERS,
    BLOCKS,
    LARGE_BLOCKS,
    Block,
    SmallModel,
    Step,
    chain,
    separated,
    single,
)
from epctx_conformance.observing import Act, Call, Watch, observe_calls
from epctx_conformance.table import CheckFailed, Requirements, Skipped
from epctx_core import InferenceSession, ModelCompiler, Registry, SessionOptions
from epctx_core.errors import EpctxError
from epctx_core.plugin import Purpose

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider


class Harness:
    """EP under test, and the work that it takes; shared by the checks of one run.

    Attributes:
        provider: the EP's class.
        requirements: the abilities that its author declares.
        options: its options.
        full: whether every model is run, not a sample.
        before: EPs that are asked before this one.
        unavailable: why the EP cannot be used on this machine, once the check of its
            availability failed; empty before, and if it can.
        fork_server: starts processes for jobs; shared with the harnesses that are made
            from this one.
    """

    def __init__(
        self,
        provider: type[ExecutionProvider],
        *,
        requirements: Requirements | None = None,
        options: Mapping[str, str] | None = None,
        models: Sequence[str | bytes] = (),
        full: bool = False,
    ) -> None:
        self.provider = provider
        self.requirements = requirements or Requirements()
        self.options = dict(options or {})
        self.full = full
        self.before: tuple[type[ExecutionProvider], ...] = ()
        self.unavailable = ""
        self.fork_server = ForkServer("epctx_conformance.other_process")
        self._models = tuple(models)
        self._takes_by_block: dict[Block, bool] = {}
        # A check that was left behind may still write while it is removed.
        self._root = tempfile.TemporaryDirectory(
            prefix="epctx-conformance-", ignore_cleanup_errors=True
        )

    def close(self) -> None:
        """Remove every folder, also of the harnesses that were made from this one, and
        end the process that forks.
        """
        self.fork_server.close()
        self._root.cleanup()

    def folder(self) -> Path:
        """Return a new, empty folder that lives as long as this."""
        return Path(tempfile.mkdtemp(dir=self._root.name))

    @cached_property
    def registry(self) -> Registry:
        """Registry with this EP, and those before it."""
        made = Registry(entry_points=False)
        for provider in (*self.before, self.provider):
            made.register(provider)
        return made

    def like(self, **changes: Any) -> Self:
        """Return a harness that differs in the attributes `provider`, `options` or
        `before` alone.
        """
        other = copy(self)
        vars(other).pop("registry", None)
        vars(other).update(changes)
        return other

    def observed(self, **acts: Act) -> tuple[Self, Watch]:
        """Return an equal harness whose EP is observed; see
        `epctx_conformance.observing`.
        """
        provider, watch = observe_calls(self.provider, acts)
        return self.like(provider=provider), watch

    def ask(self, model: SmallModel, act: Act | None = None) -> list[Call]:
        """Return the calls of get_capability that one assignment makes; an error is the
        EP's.

        Args:
            model: whose nodes are assigned.
            act: called instead of get_capability.
        """
        acts = {} if act is None else {"get_capability": act}
        other, watch = self.observed(**acts)
        try:
            other.explain(model)
        except EpctxError as error:
            raise CheckFailed(
                f"of the model {model.name}: {error.message}", hint=error.hint or ""
            ) from error
        return watch.of("get_capability")

    # -- short ways
    # ------------------------------------------------------------------------------

    def session_options(
        self, config: Mapping[str, str] | None = None
    ) -> SessionOptions:
        """Return session options with the EP, and config entries.

        An EP with `needs_verified_payloads` gets all payloads in the process that asks:
        those of the kit's own process are good, the others meant for it.
        """
        made = SessionOptions()
        for other in self.before:
            made.add_provider(other.name)
        made.add_provider(self.provider.name, self.options)
        for key, value in {
            "ep.context_trust_unverified": "1",
            # Cases of single operators are partitions, whatever those do.
            "ep.partition_without_computation": "keep",
            **(config or {}),
        }.items():
            made.add_session_config_entry(key, value)
        return made

    def session(
        self,
        model: SmallModel | Path | bytes,
        config: Mapping[str, str] | SessionOptions | None = None,
    ) -> InferenceSession:
        """Return a session of a model to compile, or of a context model: with the EP,
        or options that name it.
        """
        options = (
            config
            if isinstance(config, SessionOptions)
            else self.session_options(config)
        )
        source = model.data if isinstance(model, SmallModel) else model
        return InferenceSession(source, options, registry=self.registry)

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
    ) -> ModelCompiler:
        """Return a compiler with the EP."""
        source = model.data if isinstance(model, SmallModel) else model
        return ModelCompiler(
            self.session_options(config), source, embed, registry=self.registry
        )

    def compile(
        self,
        model: SmallModel,
        *,
        embed: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> Path:
        """Compile a model in a new folder and remove it there; return the context
        model's path.
        """
        source = self.folder() / f"{model.name}.onnx"
        source.write_bytes(model.data)
        self.compiler(source, embed=embed, config=config).compile_to_file()
        source.unlink()
        return source.with_name(f"{model.name}_ctx.onnx")

    @staticmethod
    def reference(model: SmallModel, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the CPU EP's results."""
        with InferenceSession(
            model.data, registry=Registry(entry_points=False)
        ) as session:
            return session.run(None, feeds)

    def expect_agreement(
        self,
        model: SmallModel,
        results: Sequence[Any],
        feeds: Mapping[str, np.ndarray],
        what: str,
        *,
        hint: str = "If the EP computes with less precision on purpose, set "
        "Requirements(tolerance=...).",
    ) -> None:
        """Raise CheckFailed unless results are those of the CPU EP; `what` begins the
        message.
        """
        reference = self.reference(model, feeds)
        different = disagreement(
            results, reference, tolerance=self.requirements.tolerance, step=model.step
        )
        if different is not None:
            raise CheckFailed(f"{what} ({model.name}): {different}.", hint=hint)

    def expect_run(
        self,
        model: SmallModel,
        what: str,
        source: SmallModel | Path | bytes | InferenceSession | None = None,
        *,
        feeds: Mapping[str, np.ndarray] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Run a model and raise CheckFailed unless the results are those of the CPU EP.

        Args:
            model: the model whose results are expected.
            what: begins the message.
            source: what is run: a context model that was compiled from the model, or a
                session; the model if None.
            feeds: inputs; the model's own if None.
            config: session options.
        """
        feeds = model.feeds() if feeds is None else feeds
        if isinstance(source, InferenceSession):
            results = source.run(None, feeds)
        else:
            results = self.run(model if source is None else source, feeds, config)
        self.expect_agreement(model, results, feeds, what)

    # -- the work that it takes
    # ------------------------------------------------------------------

    def explain(
        self, model: SmallModel, *, purpose: Purpose = Purpose.RUN
    ) -> Explanation:
        """Return which nodes of a model the EP takes; nothing is compiled."""
        return explain_model(
            model.data, self.session_options(), registry=self.registry, purpose=purpose
        )

    def claimed(self, model: SmallModel) -> list[frozenset[str]]:
        """Return the names of the nodes that the EP takes: a set for each partition,
        and for each node run by a kernel.
        """
        partitions: dict[int, set[str]] = {}
        kernels = []
        for node in self.explain(model).nodes:
            if node.partition is not None:
                partitions.setdefault(node.partition, set()).add(node.name)
            elif node.kernel:
                kernels.append(frozenset([node.name]))
        return [*map(frozenset, partitions.values()), *kernels]

    def claimed_names(self, model: SmallModel) -> frozenset[str]:
        """Return the names of all nodes that the EP takes."""
        return frozenset().union(*self.claimed(model))

    def takes(self, block: Block) -> bool:
        """Return whether the EP takes a block's operator."""
        if block not in self._takes_by_block:
            prefix = f"{block.operator.lower()}_"
            self._takes_by_block[block] = any(
                name.startswith(prefix) for name in self.claimed_names(single(block))
            )
        return self._takes_by_block[block]

    def _find_first(self, blocks: Iterable[Block], what: str) -> Block:
        block = next(filter(self.takes, blocks), None)
        if block is None:
            raise Skipped(f"the EP takes none of the kit's {what}")
        return block

    @property
    def claimed_blocks(self) -> tuple[Block, ...]:
        """The kit's blocks that the EP takes."""
        return tuple(filter(self.takes, BLOCKS))

    @property
    def block(self) -> Block:
        """The block that shows most of those that the EP takes; Skipped if it takes
        none.
        """
        return self._find_first(BLOCKS, "blocks")

    @property
    def weighted_block(self) -> Block:
        """The first block with weights that the EP takes; Skipped if it takes none."""
        return self._find_first(
            (block for block in BLOCKS if block.weighted), "blocks with weights"
        )

    @property
    def large_block(self) -> Block:
        """The first block with a large weight that the EP takes; Skipped if it takes
        none.
        """
        return self._find_first(LARGE_BLOCKS, "blocks with a large weight")

    @cached_property
    def own_models(self) -> tuple[SmallModel, ...]:
        """The models that the EP's author gave, complete in themselves."""
        return tuple(
            SmallModel(f"given_{number}", onnx.load_from_string(each))
            if isinstance(each, bytes)
            else SmallModel(Path(each).stem, onnx.load(each))
            for number, each in enumerate(self._models)
        )

    @cached_property
    def barrier_or_none(self) -> Step | None:
        """The `barrier`, or None; Skipped if the EP takes no block."""
        barriers = (
            each
            for each in BARRIERS.values()
            if len(self.claimed(separated(self.block, each))) == 2  # noqa: PLR2004
        )
        return next(barriers, None)

    @property
    def barrier(self) -> Step:
        """Step that the EP does not take, which keeps its blocks apart; Skipped if it
        takes all that the kit has.
        """
        barrier = self.barrier_or_none
        if barrier is None:
            raise Skipped(
                "the EP takes everything that the kit could put between two of its "
                "blocks"
            )
        return barrier

    def claimed_models(self) -> list[SmallModel]:
        """Return models of which the EP takes something: one for each block, then those
        of its author.

        Raises:
            Skipped: there is none.
        """
        models = [single(block) for block in self.claimed_blocks]
        models += [model for model in self.own_models if self.claimed(model)]
        if not models:
            raise Skipped(
                "the EP takes nothing of any model that the kit has; give it some "
                "with models=[...]"
            )
        return models

    @cached_property
    def network(self) -> SmallModel:
        """Model for all that does not depend on its structure: two blocks that are
        apart if possible.

        Raises:
            Skipped: the EP takes nothing.
        """
        try:
            block = self.block
        except Skipped:
            return self.claimed_models()[0]
        if self.barrier_or_none is not None and self.requirements.several_partitions:
            return separated(block, self.barrier_or_none)
        return chain(block)


def disagreement(
    results: Sequence[Any],
    reference: Sequence[Any],
    *,
    tolerance: float,
    step: float = 0.0,
) -> str | None:
    """Describe where two lists of results differ first; None if they agree.

    Args:
        results: what is assessed.
        reference: what it should be.
        tolerance: the largest difference allowed, as a share of the reference's largest
            finite number.
        step: a difference that is allowed besides: a step of quantisation.
    """
    if len(results) != len(reference):
        return f"there are {len(results)} results instead of {len(reference)}"
    for index, (result, expected) in enumerate(zip(results, reference, strict=True)):
        different = _compare(result, expected, tolerance, step)
        if different is not None:
            return f"result {index} {different}"
    return None


def _compare(result: Any, expected: Any, tolerance: float, step: float) -> str | None:
    if not isinstance(result, np.ndarray):
        return (
            None
            if repr(result) == repr(expected)
            else f"is {result!r:.80} instead of {expected!r:.80}"
        )
    expected = np.asarray(expected)
    if result.dtype != expected.dtype:
        return f"is of type {result.dtype} instead of {expected.dtype}"
    if result.shape != expected.shape:
        return f"has the shape {list(result.shape)} instead of {list(expected.shape)}"
    if expected.dtype.kind in "OSUb":
        return None if np.array_equal(result, expected) else "has other elements"
    dtype = np.complex128 if expected.dtype.kind == "c" else np.float64
    ours = result.astype(dtype)
    theirs = expected.astype(dtype)
    finite = np.isfinite(theirs)
    if not np.array_equal(np.isfinite(ours), finite) or not np.array_equal(
        ours[~finite], theirs[~finite], equal_nan=True
    ):
        return "has infinities or NaN at other indices"
    largest = float(np.abs(ours[finite] - theirs[finite]).max(initial=0.0))
    magnitude = float(np.abs(theirs[finite]).max(initial=0.0))
    allowed = tolerance * magnitude + step * 1.001
    if tolerance and magnitude and expected.dtype.name == "bfloat16":
        # The distance of two numbers of 8 significant bits: results that differ less
        # may be rounded apart by it.
        allowed = max(allowed, 2.0 ** (math.floor(math.log2(magnitude)) - 7))
    return (
        None
        if largest <= allowed
        else f"differs by {largest:.3g} where {allowed:.3g} is allowed"
    )
