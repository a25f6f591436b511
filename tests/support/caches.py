"""Fixtures of the tests of `epctx cache`."""

from __future__ import annotations

import os
import time

import pytest
from support.small_models import chain, saved

from epctx_core import SessionOptions, compile_cached


@pytest.fixture(name="cache")
def _cache(tmp_path, monkeypatch):
    """A cache with two entries, one used a day after the other; gives their context
    models by name.
    """
    folder = tmp_path / "cache"
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder))
    options = SessionOptions()
    options.add_provider("QNN")
    paths = {}
    for days, name in enumerate(("new", "old")):
        model = saved(chain(["Relu", "Add"], seed=days), tmp_path / f"{name}.onnx")
        paths[name] = compile_cached(model, options)
        moment = time.time() - days * 24 * 3600 - 5
        os.utime(paths[name].parent / "used", (moment, moment))
    return paths


@pytest.fixture(name="model")
def _model(tmp_path, cache):
    """The model of one of the entries."""
    return tmp_path / "new.onnx"
