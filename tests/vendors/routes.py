"""Epctx by one of its real EPs, as a producer and consumer beside `vendors_onnxruntime.PluginEP`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Epctx:
    """Compiles, loads and runs with epctx.

    Attributes:
        ep: distribution and EP, such as `epctx-openvino:OpenVINO`.
        options: of the EP.
    """

    ep: str
    options: Mapping[str, str] = field(default_factory=dict)

    def session_options(self) -> epctx.SessionOptions:
        """Return options with the EP alone."""
        options = epctx.SessionOptions()
        options.add_provider(self.ep, dict(self.options))
        return options

    def compile_to_file(self, model: bytes, output: Path, *, embedded: bool) -> Path:
        """Write a context model and return its path."""
        report = epctx.ModelCompiler(self.session_options(), model, embedded).compile_to_file(output)
        assert report.partitions
        return output

    def compile_to_bytes(self, model: bytes) -> bytes:
        """Return a context model with embedded payloads."""
        return epctx.ModelCompiler(self.session_options(), model, True).compile_to_bytes()

    def run(self, model: Path | bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Load a model, source or compiled, and run it."""
        with epctx.InferenceSession(model, self.session_options()) as session:
            return session.run(None, dict(inputs))
