"""What an EP compiled or loaded, run directly: between a session and an EP nothing is copied or mended here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.table import Skipped

if TYPE_CHECKING:
    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.scene import Scene
    from epctx_core.plugin import ValueInfo


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One runnable with its boundary.

    Attributes:
        name: the partition's.
        run: the EP's own function.
        inputs, outputs: the boundary; all types are known and all lengths fixed.
    """

    name: str
    run: Callable[..., Sequence[np.ndarray]]
    inputs: Sequence[ValueInfo]
    outputs: Sequence[ValueInfo]

    def example(self, seed: int = 0) -> list[np.ndarray]:
        """Return inputs: whole numbers from 0 to 3, which many operators give back as they are."""
        numbers = np.random.default_rng(seed)
        arrays = [numbers.integers(0, 4, _lengths(v)).astype(v.dtype) for v in self.inputs]
        for array in arrays:
            array.setflags(write=False)
        return arrays

    def results(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run without outputs of the caller's."""
        return list(self.run(inputs, None))

    def empty_outputs(self) -> list[np.ndarray]:
        """Return memory for the results, filled with a pattern."""
        return [np.full(_lengths(v), 3, v.dtype) for v in self.outputs]


def _lengths(value: ValueInfo) -> tuple[int, ...]:
    return tuple(int(length) for length in value.shape or () if length is not None)


@contextmanager
def pieces(scene: Scene, models: Sequence[SmallModel]) -> Iterator[list[tuple[str, Piece]]]:
    """Give all that the EP compiles of some models, and loads again if it can: how it came about, and the piece.

    Raises:
        Skipped: there is nothing that can be run so.
    """
    found: list[tuple[str, Piece]] = []
    sessions = []
    watched, watch = scene.observed()
    with watched:
        try:
            for model in models:
                sessions.append(watched.session(model))
                if scene.requirements.export:
                    sessions.append(watched.session(watched.compile(model).path))
            for hook, boundaries, way in (
                ("compile", "partitions", "compiled"),
                ("load_context", "nodes", "loaded"),
            ):
                for call in watch.of(hook):
                    found += [(way, piece) for piece in _runnable(call.arguments[boundaries], call.result)]
            if not found:
                raise Skipped("the EP compiles nothing of which all types and lengths are known")
            yield found
        finally:
            for session in sessions:
                session.close()


def _runnable(boundaries: Sequence[Any], results: Sequence[Any]) -> Iterator[Piece]:
    for boundary, result in zip(boundaries, results, strict=True):
        values = (*boundary.inputs, *boundary.outputs)
        if result.run is not None and all(v.type.is_static and v.dtype is not None for v in values):
            yield Piece(name=boundary.name, run=result.run, inputs=boundary.inputs, outputs=boundary.outputs)
