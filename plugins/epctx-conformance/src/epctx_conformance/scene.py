"""What a check works with: an EP in its setting, and what of the kit's models it takes.

A scene is shared by the checks of one run. Knows no check; what it keeps is what is the same for all.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnx

from epctx_conformance.models.blocks import BARRIERS, BLOCKS, Block, Piece
from epctx_conformance.models.building import SmallModel
from epctx_conformance.models.structures import chain, parted, single
from epctx_conformance.setting import Setting
from epctx_conformance.table import Skipped
from epctx_core import Explanation, explain_model
from epctx_core.plugin import Purpose


class Scene(Setting):
    """One EP under the kit, and the work that it takes."""

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
