"""Batches in real processes: results, failures, processes that die, and the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path

import jsonschema
import onnx
import pytest
from cli.fixtures import on_a_terminal
from epctx_batch import run_batch
from epctx_batch.work import read_result
from installed import install_distribution

from epctx_core import InferenceSession

CONV = Path(__file__).parents[3] / "tests" / "real" / "conv.onnx"
FLEET = """
[batch]
cache_dir = "cache"
workers = 2

[[model]]
path = "*.onnx"

[[target]]
name = "phone"
eps = ["QNN"]

[[target]]
name = "laptop"
eps = ["OpenVINO"]
"""
DYING = """
import os
import time

from epctx_core.plugin import (
    CompiledPartition, EPContextNode, ExecutionProvider, Purpose, hookimpl,
    supported_partitions,
)


class Provider(ExecutionProvider):
    name = "DyingExecutionProvider"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: True)

    @hookimpl
    def compile(self, partitions):
        print("about to end", flush=True)
        os.write(1, b"from native code\\n")
        marker = os.environ["MARKER"]
        while marker == "hang":
            open("hanging", "w").close()
            time.sleep(0.1)
        if marker == "slow":
            time.sleep(0.7)
        elif marker == "always" or not os.path.exists(marker):
            open(marker, "w").close() if marker != "always" else None
            os._exit(9)
        self.partitions = partitions
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for partition in self.partitions:
            payload = writer.payload(partition.name)
            payload.write(b"made")
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        return [CompiledPartition(None) for _ in nodes]
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with two models and a fleet of two targets."""
    for name in ("one", "two"):
        shutil.copy(CONV, tmp_path / f"{name}.onnx")
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


@pytest.fixture
def dying(tmp_path, monkeypatch):
    """Install an EP whose compile ends its process, and add it to a fleet."""
    site = tmp_path / "site"
    site.mkdir()
    entries = {
        "epctx.execution_providers": {"DyingExecutionProvider": "dying:Provider"}
    }
    install_distribution(site, "epctx-dying", entries)
    (site / "dying.py").write_text(DYING)
    # The pool's processes have this one's path, those of isolated EPs the variable.
    monkeypatch.syspath_prepend(site)
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), before])))

    def add(folder, marker, isolate):
        monkeypatch.setenv("MARKER", str(marker))
        text = (folder / "fleet.toml").read_text()
        target = '[[target]]\nname = "dying"\neps = ["Dying"]\n'
        entries = f'"ep.isolate" = "{isolate}", "ep.compile_timeout" = ""'
        config = f"config = {{{entries}}}\n"
        (folder / "fleet.toml").write_text(text + target + config)

    return add


def count_workers():
    """Return the number of processes that run the tasks of a batch, whoever began
    them.
    """
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            count += b"epctx_batch/worker.py" in path.read_bytes()
    return count


def wait_until(holds, seconds=60):
    """Wait until a function returns a true value."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def by_target(result, target):
    """Return the results of a target, in the order of models."""
    return [task for task in result.tasks if task.target == target]


def test_each_task_leaves_a_context_model_that_loads(folder):
    result = run_batch(folder / "fleet.toml")

    assert result.ok
    assert len(result.tasks) == 4
    for task in result.tasks:
        own = Path(task.output).parent
        assert own.name == task.id
        assert sum(task.nodes.values()) == 1
        assert task.versions["epctx-core"] == "0.1.0"
        assert task.bytes == sum(
            file.stat().st_size
            for file in own.iterdir()
            if file.suffix in {".onnx", ".bin"}
        )
        assert read_result(own) == task
        with InferenceSession(task.output):
            pass


def test_what_the_cache_has_is_not_compiled_again(folder):
    first = run_batch(folder / "fleet.toml")
    again = run_batch(folder / "fleet.toml")

    # Both models are the same bytes, so the second is found in the first run.
    assert not any(task.was_cached for task in first.tasks[:2])
    assert all(task.was_cached for task in again.tasks)
    assert [task.bytes for task in again.tasks] == [task.bytes for task in first.tasks]


def test_results_stay_when_the_cache_is_removed(folder):
    result = run_batch(folder / "fleet.toml")

    shutil.rmtree(folder / "cache")

    with InferenceSession(result.tasks[0].output):
        pass


def test_a_damaged_model_fails_alone_and_its_log_says_why(folder):
    (folder / "bad.onnx").write_bytes(b"no model")

    noted = []
    result = run_batch(
        folder / "fleet.toml",
        progress=lambda task, done, total: noted.append((task.id, done, total)),
    )

    assert not result.ok
    bad = [task for task in result.tasks if task.state == "failed"]
    assert [task.error.code for task in bad] == ["INVALID_PROTOBUF"] * 2
    assert len(result.tasks) == 6
    assert [(done, total) for _, done, total in noted] == [(n, 6) for n in range(1, 7)]
    log = folder / "fleet-results" / bad[0].id / "log.txt"
    assert "the task failed" in log.read_text()


def test_a_host_whose_callback_raises_ends_the_batch(folder):
    class Enough(Exception):
        """The host has seen what it wanted."""

    for number in range(30):
        shutil.copy(CONV, folder / f"more_{number}.onnx")
    noted = []

    def stop(task, _done, _total):
        noted.append(task)
        raise Enough

    with pytest.raises(Enough):
        run_batch(folder / "fleet.toml", progress=stop)

    assert len(noted) == 1
    results = len(list((folder / "fleet-results").glob("*/result.json")))
    time.sleep(1)
    assert len(list((folder / "fleet-results").glob("*/result.json"))) == results < 20


def test_an_ep_that_ends_its_process_fails_alone_without_hurting_the_batch(
    folder, dying
):
    dying(folder, "always", "compile")

    result = run_batch(folder / "fleet.toml")

    assert all(task.state == "done" for task in by_target(result, "phone"))
    lost = by_target(result, "dying")
    assert {task.state for task in lost} == {"failed"}
    assert "DyingExecutionProvider" in lost[0].error.message
    log = (folder / "fleet-results" / lost[0].id / "log.txt").read_text()
    assert "about to end" in log
    assert "from native code" in log


def test_a_task_whose_process_dies_once_is_begun_again(folder, dying, tmp_path):
    dying(folder, tmp_path / "marker", "")
    (folder / "two.onnx").unlink()

    result = run_batch(folder / "fleet.toml")

    assert (tmp_path / "marker").exists()
    assert result.ok, [task.error for task in result.tasks]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
def test_a_batch_that_is_ended_takes_its_processes_with_it(folder, dying, tmp_path):
    """Also the process that is in the middle of a compile."""
    dying(folder, "hang", "")
    script = "from epctx_batch import run_batch; run_batch('fleet.toml')"
    before = count_workers()

    with subprocess.Popen([sys.executable, "-c", script], cwd=folder) as batch:
        wait_until((folder / "hanging").exists)
        batch.kill()

    wait_until(lambda: count_workers() <= before)


def test_a_task_whose_process_always_dies_has_failed_and_no_other(folder, dying):
    dying(folder, "always", "")
    (folder / "two.onnx").unlink()

    result = run_batch(folder / "fleet.toml")

    assert [task.state for task in by_target(result, "phone")] == ["done"]
    assert [task.state for task in by_target(result, "laptop")] == ["done"]
    (lost,) = by_target(result, "dying")
    assert "ended with exit code 9, and so did one before" in lost.error.message


# -- the command
# -----------------------------------------------------------------------------------


def read_schema(name):
    """Return the JSON Schema of a command."""
    file = resources.files("epctx_batch") / "schemas" / f"{name}.schema.json"
    return json.loads(file.read_text())


def test_the_command_prints_a_table_of_models_and_targets(epctx, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "bad.onnx").write_bytes(b"no model")

    said = epctx("batch", "fleet.toml")
    again = epctx("batch", "fleet.toml", "--json")

    assert said.code == 1
    rows = [line.split() for line in said.out.splitlines()[:4]]
    assert rows == [
        ["model", "phone", "laptop"],
        ["bad.onnx", "failed:", "INVALID_PROTOBUF", "failed:", "INVALID_PROTOBUF"],
        ["one.onnx", "1", "1"],
        ["two.onnx", "1", "1"],
    ]
    assert "6 tasks: 4 done" in said.out
    assert "bad.onnx is not an ONNX model" in said.err
    jsonschema.validate(again.json, read_schema("batch"))
    assert [task["was_cached"] for task in again.json["tasks"]] == [False] * 2 + [
        True
    ] * 4


def test_a_terminal_shows_counts_and_the_time_left_of_all_tasks(
    folder, dying, monkeypatch
):
    for number in range(6):
        model = onnx.load(CONV)
        model.graph.name = f"graph{number}"
        onnx.save(model, folder / f"several{number}.onnx")
    (folder / "bad.onnx").write_bytes(b"no model")
    fleet = folder / "fleet.toml"
    # One target, whose EP takes its time.
    fleet.write_text(fleet.read_text().partition("[[target]]")[0])
    dying(folder, "slow", "")
    monkeypatch.chdir(folder)

    code, shown = on_a_terminal("batch", "fleet.toml")

    assert code == 1
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert re.search(
        r"compiling  ━+╌+  [4-8] of 9 tasks, about \d s left, 1 failed", plain
    ), plain


def test_show_describes_a_task_by_the_begin_of_its_id(epctx, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "bad.onnx").write_bytes(b"no model")
    epctx("batch", "fleet.toml")

    done = epctx("batch", "show", "one-phone", "--json")
    failed = epctx("batch", "show", "bad-laptop")
    several = epctx("batch", "show", "one")
    none = epctx("batch", "show", "three")

    jsonschema.validate(done.json, read_schema("batch-show"))
    assert done.json["task"]["state"] == "done"
    assert done.json["options"]["eps"] == ["QNN"]
    assert failed.out.startswith("bad-laptop-")
    assert "bad.onnx is not an ONNX model" in failed.out
    assert several.code == none.code == 2
    assert "2 tasks have an ID that begins with 'one'" in several.err
    assert "there is no task 'three'" in none.err


def test_the_folder_of_results_is_an_option_of_show_alone(epctx, folder, monkeypatch):
    monkeypatch.chdir(folder)

    said = epctx("batch", "fleet.toml", "--output", "other")

    assert said.code == 2
    assert "output in [batch]" in said.err
    assert not (folder / "fleet-results").exists()


@pytest.mark.parametrize("wanted", ["", "../one", "/etc"])
def test_show_opens_no_other_folder(epctx, folder, monkeypatch, wanted):
    monkeypatch.chdir(folder)

    said = epctx("batch", "show", wanted)

    assert said.code == 2
    assert "needs the ID of a task" in said.err
