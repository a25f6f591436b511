"""onnxruntime's CPU EP for `load_or_compile`, and a runtime in onnxruntime's place: it
loads that EP's context models.

Such a model has EPContext nodes whose payloads only epctx reads. All else that
`load_or_compile` does is what it does for an EP that writes EPContext nodes itself;
tests/campaigns/vendors has those.
"""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime
from epctx_onnxruntime import cached
from support.onnxruntime_cpu_ep import OrtCpuExecutionProvider

import epctx_core as epctx
from epctx_core.plugin import ProviderOption

EP = "OptionalCpuExecutionProvider"


class OptionalCpuExecutionProvider(OrtCpuExecutionProvider):
    """onnxruntime's CPU EP with an option."""

    name = EP
    options = (ProviderOption("effort", int, default=None, doc="Of the compiler."),)

    @classmethod
    def vendor_options(cls, options):
        """Return none: onnxruntime's CPU EP takes none."""
        return {}


def registry():
    """Return a registry with that EP alone."""
    made = epctx.Registry(entry_points=False)
    made.register(OptionalCpuExecutionProvider)
    return made


class Runtime:
    """Opens context models in onnxruntime's place.

    Attributes:
        opened: what was opened, in order, with the config entries of the host at that
            time.
        fail: an exception for the next context model, or None.
    """

    def __init__(self):
        self.opened = []
        self.fail = None
        self._open = cached._open
        self._registry = registry()

    def __call__(self, model, options, ep):
        self.opened.append((model, cached._read_entries(options)))
        if isinstance(model, bytes) or Path(model).name != "model_ctx.onnx":
            return self._open(model, options, ep)
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure
        given = epctx.SessionOptions()
        given.add_provider(EP)
        return epctx.InferenceSession(os.fspath(model), given, registry=self._registry)


def in_place(patch):
    """Put a runtime in onnxruntime's place, by a function like `setattr`; return it."""
    runtime = Runtime()
    patch(cached, "_open", runtime)
    # No node says that only epctx reads it.
    patch(cached, "MODELS", "")
    return runtime


def session_options(**entries):
    """Return onnxruntime's session options; compiles are in process unless told
    otherwise.
    """
    options = onnxruntime.SessionOptions()
    for key, value in {
        "ep.isolate": "",
        **{k.replace("__", "."): v for k, v in entries.items()},
    }.items():
        options.add_session_config_entry(key, value)
    return options
