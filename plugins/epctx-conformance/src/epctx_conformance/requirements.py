"""What an EP's author says the EP can do, so that the kit asks for no more and no less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What is expected of an EP. What is True is checked; what is False is skipped, and the report says so.

    Attributes:
        partitions: it compiles partitions; False for an EP of kernels only.
        export: what it compiles can be saved and loaded; False for an EP without the context hooks.
        embed: its payloads may stand inside the model.
        share_groups: models of a share group can use one payload.
        weight_sharing: weights that models of a share group have in common are stored once.
        deterministic: the same compile gives the same bytes.
        dynamic_shapes: dimensions may be open until a run.
        scalars: tensors without dimensions.
        zero_size: tensors without elements.
        control_flow_bodies: it takes nodes in bodies of If, Loop and Scan.
        several_partitions: it compiles any number of partitions of one model.
        load_in_parts: it loads the nodes of one payload in several calls of `load_context`; False for an EP that
            holds all of them against the payload at once.
        concurrency: sessions and runs in several threads at once.
        in_process: it starts no programs; False for an EP whose compiler is a command.
        compatibility: it writes compatibility info and judges it.
        tolerance: the largest difference of a result from the CPU EP's, as a share of the largest number.
        seconds: how long one check may take.

    Example:
        >>> Requirements(dynamic_shapes=False, tolerance=1e-2)
    """

    partitions: bool = True
    export: bool = True
    embed: bool = True
    share_groups: bool = True
    weight_sharing: bool = True
    deterministic: bool = True
    dynamic_shapes: bool = True
    scalars: bool = True
    zero_size: bool = True
    control_flow_bodies: bool = True
    several_partitions: bool = True
    load_in_parts: bool = True
    concurrency: bool = True
    in_process: bool = True
    compatibility: bool = True
    tolerance: float = 1e-3
    seconds: float = 120.0

    def lacking(self, needs: Sequence[str]) -> str | None:
        """Return the first of the needs that is not expected of the EP, or None."""
        return next((need for need in needs if not getattr(self, need)), None)


NEEDS = frozenset(field.name for field in fields(Requirements) if isinstance(field.default, bool))
"""What a check may need."""
