"""Share groups and processes: several that load one have its weights in memory once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.share_models import options, run, write_model
from support.sim_eps import OPENVINO, QNN, SUFFIXES, VITISAI

import epctx_core as epctx

SMAPS = Path("/proc/self/smaps")
ROWS = {"a": 1, "b": 8}

LOAD = """
import sys
import epctx_core as epctx
from support.share_models import example, sharing
from compiling.test_share_group_processes import memory_of, tell
sessions = []
for ep, model, rows in zip(*[iter(sys.argv[1:])] * 3):
    session = epctx.InferenceSession(model, sharing(ep))
    sessions.append((session, session.run(None, example(int(rows)))[0].tolist()))
tell([result for _, result in sessions])
sys.stdin.readline()
tell(memory_of(".bin"))
sys.stdin.readline()
"""


def tell(value):
    """Give the other process a value, in one line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def memory_of(suffix):
    """Return path to kilobytes by kind: this process's mappings of files whose names
    end so.
    """
    found, current = {}, []
    for line in SMAPS.read_text().splitlines():
        words = line.split()
        if words[0].endswith(":"):
            for kinds in current:
                kinds[words[0][:-1]] = kinds.get(words[0][:-1], 0) + int(
                    words[1] if words[1].isdigit() else 0
                )
        else:
            current = (
                [found.setdefault(words[-1], {})] if words[-1].endswith(suffix) else []
            )
    return found


class Loader:
    """A process that loads models, runs each once, and stays."""

    def __init__(self, models):
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LOAD,
                *(str(word) for model in models for word in model),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self):
        return json.loads(self._process.stdout.readline())

    def go_on(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self):
        self._process.communicate("\n", timeout=60)
        assert self._process.returncode == 0


@pytest.mark.skipif(
    not SMAPS.exists(), reason="memory by mapping is counted on Linux only"
)
def test_processes_that_load_models_of_one_group_have_its_weights_in_memory_once(
    tmp_path,
):
    eps = [QNN, OPENVINO, VITISAI]
    loaded = {name: [] for name in ROWS}
    for ep in eps:
        folder = tmp_path / SUFFIXES[ep]
        folder.mkdir()
        with epctx.ShareGroup(folder) as group:
            for name, rows in ROWS.items():
                group.compile(
                    write_model(ep, folder / f"{name}.onnx", rows, prefix=name),
                    options(ep),
                )
                loaded[name].append((ep, folder / f"{name}_ctx.onnx", rows))

    loaders = [Loader(models) for models in loaded.values()]
    results = [loader.answer() for loader in loaders]
    for loader in loaders:
        loader.go_on()
    memories = [loader.answer() for loader in loaders]
    for loader in loaders:
        loader.end()

    for models, found in zip(loaded.values(), results, strict=True):
        for (ep, model, rows), result in zip(models, found, strict=True):
            expected = run(model, rows, options(ep, ep__prefer_latency=0))
            assert np.array_equal(np.array(result, np.float32), expected)
    assert [len(memory) for memory in memories] == [len(eps)] * 2
    for path, first in memories[0].items():
        second = memories[1][path]
        resident = max(first["Rss"], second["Rss"])
        assert resident >= 0.8 * Path(path).stat().st_size / 1024
        # Each page counts half in each of two processes that have it.
        assert first["Pss"] + second["Pss"] <= 1.1 * resident
        assert first["Private_Dirty"] == second["Private_Dirty"] == 0
