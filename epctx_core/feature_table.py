"""Table of features: what switches each on, and the class that it is.

Texts only, at the bottom of the house: a feature is at its top, and is not imported
before something asks for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from epctx_core.options import SessionConfig


class Feature(NamedTuple):
    """Row of the table.

    Attributes:
        stages: its class over `Stages`, as `module:name`.
        option: the attribute of `SessionConfig` that is true where it is on; empty for
            a feature that marks switch on and that reads its option itself.
        marks: what also switches it on: keys of a manifest, `COMPILE`.
        is_shareable: whether a model of a share group can have it.
    """

    stages: str
    option: str
    marks: Collection[str] = ()
    is_shareable: bool = True


COMPILE = "compile"
"""Mark of each compile."""

FEATURES = (
    Feature(
        "epctx_core.features.weightless:Weightless",
        "weightless",
        ("source_weights",),
        is_shareable=False,
    ),
    Feature("epctx_core.features.optional_eps:OptionalProviders", "optional_providers"),
    Feature("epctx_core.features.compile_failures:CompileFailures", "goes_on_to_next"),
    Feature("epctx_core.features.read_back:ReadBack", "", (COMPILE,)),
)
"""The first is called first, around the others."""

PARTS = {"source_weights": "epctx_core.features.weightless:read_references"}
"""Keys of the manifest that features own, each with what checks and reads its JSON."""

METHODS = {"source_tensor": "epctx_core.features.weightless:SourceWeights"}
"""Methods of the contract that features have, each with the class that has it."""


def find_features(
    config: SessionConfig, marks: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the classes of the features that a host's options, or marks of a model,
    switch on.
    """
    if not config.entries and not marks:
        # Most loads.
        return ()
    return tuple(
        feature.stages
        for feature in FEATURES
        if (feature.option and getattr(config, feature.option))
        or not {*feature.marks}.isdisjoint(marks)
    )
