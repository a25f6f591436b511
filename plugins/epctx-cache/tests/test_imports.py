"""Imports of a second start: of a process that finds its model in the cache."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import epctx_core as epctx

pytestmark = pytest.mark.internal

UNNEEDED = {
    "argparse",
    "concurrent.futures",
    "email",
    "http",
    "importlib.metadata",
    "importlib_metadata",
    "onnx",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "zipfile",
}
OF_THE_CACHE = {
    "epctx_cache",
    "epctx_cache.caching",
    "epctx_cache.content",
    "epctx_cache.counters",
    "epctx_cache.key",
    "epctx_cache.lock",
    "epctx_cache.request",
    "epctx_cache.settings",
    "epctx_cache.store",
    "epctx_core.ext",
    "fcntl",
}
OF_ADDRESSES = {"ipaddress", "urllib", "urllib.parse"}
"""Read an editable package's folder; some versions of Python import them by `pathlib`.
"""
START = """
import json, sys
import numpy as np
import onnxruntime
others = set(sys.modules)
import epctx_core as epctx
_, model, cache = sys.argv
if cache:
    session = epctx.load_or_compile(model, cache_dir=cache, providers=["QNN"])
else:
    session = epctx.InferenceSession(model, providers=["QNN"])
with session:
    session.run(None, {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()})
print(json.dumps(sorted(sys.modules.keys() - others)))
"""


def imported_by(model, cache=""):
    done = subprocess.run(
        [sys.executable, "-c", START, str(model), str(cache)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.usefixtures("none_too_new")
def test_a_second_start_imports_what_a_load_of_the_context_model_does_and_the_cache(
    cache, model
):
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    context_model = cache.path(model, options)

    start = imported_by(model, cache.folder)

    assert start & UNNEEDED == set()
    assert not [
        name
        for name in start
        if name.startswith(("epctx_core.compiling", "epctx_core.publish"))
    ]
    more = start - imported_by(context_model)
    assert more - OF_ADDRESSES == OF_THE_CACHE
    assert cache.keys == {context_model.parent.name}
