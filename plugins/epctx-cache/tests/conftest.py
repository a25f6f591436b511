"""What the tests of the cache share: a small model, a cache of a test's own, and an ear
for its compiles.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
from epctx_cache import content
from epctx_cache.store import EntryStore
from onnx import numpy_helper
from support.cli_fixtures import epctx as run_command  # noqa: F401 - fixture
from support.sim_eps import QNN, with_eps
from support.small_models import chain, saved

import epctx_core as epctx


class Cache:
    """A cache in a folder, and the compiles that the cache's log tells of."""

    def __init__(self, folder, caplog):
        self.folder = folder
        self.store = EntryStore(folder)
        self._caplog = caplog

    def session(self, model, options=None, **arguments):
        return epctx.load_or_compile(
            model, options or with_eps(QNN), self.folder, **arguments
        )

    def path(self, model, options=None, **arguments):
        return epctx.compile_cached(
            model, options or with_eps(QNN), self.folder, **arguments
        )

    def key(self, model, options=None, **arguments):
        return self.path(model, options, **arguments).parent.name

    @property
    def keys(self):
        return {entry.key for entry in self.store.entries()}

    @property
    def _records(self):
        return [
            record
            for when in ("setup", "call")
            for record in self._caplog.get_records(when)
        ]

    @property
    def compiles(self):
        return sum(
            record.getMessage().startswith("compiled ") for record in self._records
        )

    @property
    def warnings(self):
        return [r.getMessage() for r in self._records if r.levelno >= logging.WARNING]


@pytest.fixture
def cache(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="epctx.cache")
    return Cache(tmp_path / "cache", caplog)


@pytest.fixture
def none_too_new(monkeypatch):
    """Files just written enter the index, too.

    Nobody can set the time that would make them look old.
    """
    monkeypatch.setattr(content, "RACY_NS", 0)


@pytest.fixture
def model(tmp_path):
    """A small model alone in a folder."""
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "small.onnx")


@pytest.fixture
def with_weights(tmp_path):
    """Write a model whose one weight, 64 KiB of one value, lies in a file `w.bin`
    beside it; gives the model's path.
    """

    def write(value=0.5, folder="weights", name="big.onnx"):
        home = tmp_path / folder
        home.mkdir(exist_ok=True)
        weight = numpy_helper.from_array(np.full((128, 128), value, np.float32), "w")
        nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="n")]
        values = [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 128])
            for name in ("x", "y")
        ]
        graph = onnx.helper.make_graph(nodes, "big", values[:1], values[1:], [weight])
        made = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
        )
        onnx.save(
            made,
            home / name,
            save_as_external_data=True,
            location="w.bin",
            size_threshold=0,
        )
        return home / name

    return write
