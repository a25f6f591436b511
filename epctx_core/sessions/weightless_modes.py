"""Weightless modes that EPs support."""

from __future__ import annotations

from collections.abc import Collection

from epctx_core.errors import InvalidArgument, NotImplementedByProvider
from epctx_core.options import WeightlessMode

_OPTION = "ep.enable_weightless_mode"


def check_weightless_mode(
    ep: str, modes: Collection[WeightlessMode] | None, mode: WeightlessMode
) -> None:
    """Check that an EP supports a weightless mode.

    Args:
        ep: the EP's name.
        modes: those that it supports; None if it knows none.
        mode: the one that the host asks for.

    Raises:
        NotImplementedByProvider: the EP does not know weightless mode.
        InvalidArgument: it knows it, but not this mode.
    """
    if modes is None:
        raise NotImplementedByProvider(
            f"{ep} does not know weightless mode, which {_OPTION} asks for.",
            ep=ep,
            hint=f"Leave {_OPTION} and ep.enable_weightless out, or compile without "
            "this EP.",
        )
    if mode not in modes:
        raise InvalidArgument(
            f"{ep} does not support weightless mode {int(mode)} ({mode.name}); it "
            f"supports: {format_weightless_modes(modes)}.",
            ep=ep,
            hint=f"Set {_OPTION} to a mode that it supports, or leave it out.",
        )


def format_weightless_modes(modes: Collection[WeightlessMode] | None) -> str:
    """Return the modes that an EP supports in ONNX Runtime's words."""
    names = sorted(
        mode.name.lower() for mode in modes or () if mode is not WeightlessMode.NONE
    )
    return "_or_".join(names) or "none"
