"""epctx with a vendor's EP, by the methods of `PluginEP`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import epctx_core as epctx

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Epctx:
    """Compiles, loads and runs with epctx.

    Attributes:
        ep: the EP as sessions name it, with its distribution where several have one of this name.
        options: the vendor's.
    """

    ep: str
    options: Mapping[str, str] = field(default_factory=dict)

    def session_options(self, **entries: str) -> epctx.SessionOptions:
        """Return options with the EP; entries are keys after `ep.`."""
        options = epctx.SessionOptions()
        options.add_provider(self.ep, dict(self.options))
        for key, value in entries.items():
            options.add_session_config_entry(f"ep.{key}", value)
        return options

    def compile_to_file(self, model: bytes, output: Path, *, embedded: bool) -> Path:
        """Write a context model and return its path."""
        epctx.ModelCompiler(self.session_options(), model, embedded).compile_to_file(output)
        return output

    def compile_to_bytes(self, model: bytes) -> bytes:
        """Return a context model with embedded payloads."""
        return epctx.ModelCompiler(self.session_options(), model, True).compile_to_bytes()

    def run(self, model: Path | bytes, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Load a model, source or compiled, and run it."""
        with epctx.InferenceSession(model, self.session_options()) as session:
            return session.run(None, dict(inputs))
