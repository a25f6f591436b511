"""Batches in real processes: results, failures, processes that die, and the command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path

import jsonschema
import onnx
import pytest
from epctx_batch import processes, run_batch
from epctx_batch.fleet import read_fleet
from epctx_batch.results import CPU_EP, TaskResult
from epctx_batch.work import read_result
from epctx_files import verify_folder
from support.cli_fixtures import on_a_terminal
from support.folders import REAL
from support.isolation import wait_for

from epctx_core import InferenceSession

pytestmark = pytest.mark.internal

CONV = REAL / "conv.onnx"
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


@pytest.fixture
def folder(tmp_path):
    """A folder with two models and a fleet of two targets."""
    for name in ("one", "two"):
        shutil.copy(CONV, tmp_path / f"{name}.onnx")
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def test_the_results_of_a_whole_batch_are_sealed_and_those_of_a_failed_one_are_not(
    folder,
):
    result = run_batch(folder / "fleet.toml")
    output = Path(result.output)
    sealed = verify_folder(output)

    assert sealed.findings == []
    assert sealed.sealed.purpose == f"epctx batch {output.name}"
    names = {file.name for file in sealed.sealed.files}
    assert {
        Path(task.output).relative_to(output).as_posix() for task in result.tasks
    } < names

    (folder / "two.onnx").write_bytes(b"no model")
    run_batch(folder / "fleet.toml")
    assert verify_folder(output).findings


@pytest.fixture
def dying(installed, monkeypatch):
    """Add the EP whose compile ends as a test wants to a fleet."""

    def add(folder, ending, isolate):
        monkeypatch.setenv("ENDING", str(ending))
        text = (folder / "fleet.toml").read_text()
        target = '[[target]]\nname = "dying"\neps = ["Made"]\n'
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


def test_nodes_inside_subgraphs_are_counted(folder):
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (bool c, float[2,2] k, float[2] x) => (float[2] y) {
        y = If (c) <
            then_branch = t () => (float[2] a) { m = Det (k)  a = Add (x, m) },
            else_branch = e () => (float[2] b) { b = Mod <fmod = 1> (x, x) }
        >
    }"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, folder / "one.onnx")
    (folder / "two.onnx").unlink()

    result = run_batch(folder / "fleet.toml")

    (task,) = by_target(result, "phone")
    assert sum(task.nodes.values()) == 4
    assert task.nodes[CPU_EP] > 1


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


@pytest.mark.parametrize(("umask", "is_linked"), [(0o022, True), (0o002, False)])
def test_no_link_into_the_cache_is_left_to_those_who_may_write_to_it(
    folder, umask, is_linked
):
    (folder / "two.onnx").unlink()
    before = os.umask(umask)
    try:
        result = run_batch(folder / "fleet.toml")
    finally:
        os.umask(before)

    assert result.ok
    kept = [p for p in (folder / "cache").rglob("*") if p.is_file()]
    for task in result.tasks:
        delivered = Path(task.output)
        assert any(delivered.samefile(path) for path in kept) == is_linked
        assert read_result(delivered.parent) == task


def test_open_dimensions_get_the_lengths_of_the_file(folder):
    model = onnx.load(CONV)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, folder / "one.onnx")
    (folder / "two.onnx").unlink()
    text = (folder / "fleet.toml").read_text()
    text = text.replace('eps = ["QNN"]', 'eps = ["QNN"]\nfree_dimensions.batch = 2')
    (folder / "fleet.toml").write_text(text)

    result = run_batch(folder / "fleet.toml")

    (task,) = by_target(result, "phone")
    assert task.nodes == {"QNNExecutionProvider": 1}
    with InferenceSession(task.output) as session:
        assert session.get_inputs()[0].shape[0] == 2
    facts = json.loads((folder / "fleet-results" / task.id / "task.json").read_text())
    assert facts["free_dimensions"] == {"batch": 2}


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
    assert "MadeExecutionProvider" in lost[0].error.message
    log = (folder / "fleet-results" / lost[0].id / "log.txt").read_text()
    assert "compiling" in log
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
        assert wait_for((folder / "hanging").exists, seconds=60)
        batch.kill()

    assert wait_for(lambda: count_workers() <= before, seconds=60)


def test_a_task_whose_process_always_dies_has_failed_and_no_other(folder, dying):
    dying(folder, "always", "")
    (folder / "two.onnx").unlink()

    result = run_batch(folder / "fleet.toml")

    assert [task.state for task in by_target(result, "phone")] == ["done"]
    assert [task.state for task in by_target(result, "laptop")] == ["done"]
    (lost,) = by_target(result, "dying")
    assert "ended with exit code 9, and so did one before" in lost.error.message
    assert read_result(folder / "fleet-results" / lost.id) == lost


def test_the_folder_of_a_task_that_fails_has_no_earlier_context_model(folder):
    first = run_batch(folder / "fleet.toml")
    (folder / "one.onnx").write_bytes(b"no model any more")

    again = run_batch(folder / "fleet.toml")

    failed = [task for task in again.tasks if task.state == "failed"]
    assert len(failed) == 2
    for task in failed:
        left = {path.name for path in (folder / "fleet-results" / task.id).iterdir()}
        assert left == {"task.json", "log.txt", "result.json"}
    assert Path(first.tasks[-1].output).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
def planted(folder, tmp_path_factory):
    """Return the folder of the batch's first task, made, and a folder of the user."""
    task = Path(read_fleet(folder / "fleet.toml").tasks[0].folder)
    task.mkdir(parents=True)
    private = tmp_path_factory.mktemp("private")
    for name in ("result.json", "report.html", "precious"):
        (private / name).write_text("precious")
    return task, private


def test_a_link_in_place_of_a_task_s_folder_fails_the_task_and_is_not_followed(
    folder, tmp_path_factory
):
    """Others may be able to write where the results go."""
    task, private = planted(folder, tmp_path_factory)
    task.rmdir()
    task.symlink_to(private)

    result = run_batch(folder / "fleet.toml")

    assert [each.state for each in result.tasks] == ["failed", *["done"] * 3]
    assert f"{task} is a link" in result.tasks[0].error.message
    assert {path.read_text() for path in private.iterdir()} == {"precious"}
    assert len(list(private.iterdir())) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_task_s_folder_that_another_user_made_fails_the_task(
    folder, tmp_path_factory
):
    task, _ = planted(folder, tmp_path_factory)
    (task / "precious").touch()
    os.chown(task, 4711, 4711)

    result = run_batch(folder / "fleet.toml")

    assert [each.state for each in result.tasks] == ["failed", *["done"] * 3]
    assert f"{task} belongs to another user" in result.tasks[0].error.message
    assert [path.name for path in task.iterdir()] == ["precious"]


def test_a_link_in_place_of_a_log_is_replaced(folder, tmp_path_factory):
    task, private = planted(folder, tmp_path_factory)
    (task / "log.txt").symlink_to(private / "precious")

    assert run_batch(folder / "fleet.toml").ok

    assert (private / "precious").read_text() == "precious"
    assert not (task / "log.txt").is_symlink()


def test_a_process_without_a_task_for_long_ends_and_another_takes_its_place(
    folder, monkeypatch
):
    """As on a Dask worker, which does not notice that a batch was killed."""
    script = Path(processes.__file__).with_name("worker.py")
    hasty = folder / "worker.py"
    hasty.write_text(
        script.read_text().replace(
            "_IDLE_SECONDS: Final = 300.0", "_IDLE_SECONDS = 0.2"
        )
    )
    monkeypatch.setattr(processes, "_SCRIPT", hasty)
    first, second = read_fleet(folder / "fleet.toml").tasks[:2]

    with closing(processes.Processes()) as running:
        assert running.run(first).state == "done"
        (process,) = running._idle
        assert wait_for(lambda: not process.is_alive, seconds=60)
        assert running.run(second).state == "done"


def test_a_folder_of_results_tells_no_secret(folder, installed):
    (folder / "two.onnx").unlink()
    text = (folder / "fleet.toml").read_text()
    shared = 'shared_cache = "nowhere://me:a-password@host/shared"'
    text = text.replace("[batch]", f"[batch]\n{shared}")
    made = """
[[target]]
name = "made"
eps = ["Made"]
options = {Made = {level = 3, token = "a-licence"}}
config = {"vendor.token" = "a-word", "ep.context_embed_mode" = "1"}
"""
    (folder / "fleet.toml").write_text(text + made)

    result = run_batch(folder / "fleet.toml")

    (task,) = by_target(result, "made")
    facts = json.loads((folder / "fleet-results" / task.id / "task.json").read_text())
    assert task.state == "done", task.error
    assert facts["options"] == {"Made": {"level": "3", "token": "(hidden)"}}
    assert facts["config"] == {"vendor.token": "(hidden)", "ep.context_embed_mode": "1"}
    assert facts["shared_cache"] == "nowhere://***@host/shared"
    logs = [path.read_text() for path in (folder / "fleet-results").glob("*/log.txt")]
    assert "the shared cache nowhere://***@host/shared" in "".join(logs)
    for path in (folder / "fleet-results").rglob("*"):
        if path.is_file():
            assert not re.search(rb"a-password|a-licence|a-word", path.read_bytes())


def test_an_entry_that_the_cache_removes_meanwhile_is_compiled_again(
    folder, monkeypatch
):
    """Each task alone needs more than the limit, so one removes the entry of another."""
    monkeypatch.setenv("EPCTX_CACHE_SIZE", "1")
    for number in range(4):
        model = onnx.load(CONV)
        model.graph.name = f"another {number}"
        onnx.save(model, folder / f"more_{number}.onnx")

    result = run_batch(folder / "fleet.toml")

    assert result.ok, [task.error for task in result.tasks if task.error]


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


def test_no_text_of_a_file_or_a_folder_steers_a_terminal(epctx, folder, monkeypatch):
    monkeypatch.chdir(folder)
    mark = "\u202e\x1b[2J"
    (folder / "one.onnx").rename(folder / f"one{mark}.onnx")
    text = (folder / "fleet.toml").read_text()
    (folder / "fleet.toml").write_text(text.replace("phone", "pho\\u202e\\u001b[2Jne"))

    said = epctx("batch", "fleet.toml")
    (task,) = (folder / "fleet-results").glob("two-pho*")
    task.rename(shown := task.with_name(f"two{mark}"))
    (shown / "log.txt").write_text(mark)
    told = epctx("batch", "show", shown.name)

    assert said.code == told.code == 0, said.err
    for printed in (said.out, said.err, told.out, told.err):
        assert printed.replace("\n", "").isprintable()
    assert said.out.count("\\u202e\\x1b[2J") >= 2


def test_a_batch_in_which_nothing_is_compiled_exits_with_1_and_keeps_why(
    epctx, folder, monkeypatch
):
    monkeypatch.chdir(folder)
    graph = "<ir_version: 8, opset_import: ['' : 17]> g (float[N] x) => (float[N] y)"
    model = onnx.parser.parse_model(graph.replace("'", '"') + "{ y = Relu(x) }")
    onnx.save(model, folder / "two.onnx")

    said = epctx("batch", "fleet.toml")
    again = epctx("batch", "fleet.toml", "--json")
    shown = epctx("batch", "show", "two-phone")
    text = (folder / "fleet.toml").read_text()
    allowing = text.replace("[batch]", "[batch]\nallow_uncompiled = true")
    (folder / "fleet.toml").write_text(allowing)
    allowed = epctx("batch", "fleet.toml")

    assert (said.code, again.code, allowed.code) == (1, 1, 0)
    assert "1 with nothing compiled; 0 failed" in said.out
    assert "allow_uncompiled = true in [batch]" in said.out
    assert "QNN takes static shapes only" in said.err
    assert again.json["ok"] is False
    jsonschema.validate(again.json, read_schema("batch"))
    (plain,) = [t for t in again.json["tasks"] if t["nodes"].keys() <= {CPU_EP}]
    assert plain["was_cached"]
    assert plain["state"] == "done"
    (warning,) = plain["warnings"]
    assert "QNN takes static shapes only" in warning
    log = (folder / "fleet-results" / plain["id"] / "log.txt").read_text()
    assert warning in log
    assert "Nothing was compiled." in shown.out
    assert "QNN takes static shapes only" in shown.out


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
        r"compiling [━╸╺]+ [4-8] of 9 tasks, about 0:00:0\d left, 1 failed", plain
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


@pytest.fixture
def show(tmp_path):
    """The folder of a task that is done, and a function that shows it in a process of
    its own, which a test may give up.
    """
    result = TaskResult(
        id="one-phone", model="one.onnx", target="phone", state="done",
        was_cached=False, seconds=1.5, nodes={"QNNExecutionProvider": 1},
        output="one_ctx.onnx", bytes=1, error=None, versions={"epctx-core": "0.1.0"},
    )  # fmt: skip
    folder = tmp_path / "fleet-results" / result.id
    folder.mkdir(parents=True)
    (folder / "task.json").write_text('{"eps": ["QNN"]}')
    (folder / "log.txt").write_text("compiled\n")
    (folder / "result.json").write_text(json.dumps(result.as_dict()))

    def run(*more):
        return subprocess.run(
            [sys.executable, "-m", "epctx_core", "batch", "show", result.id, *more],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return folder, run


def hand_over(path, how):
    """Put a file there that is not what the batch writes."""
    path.unlink()
    if how == "a pipe":
        os.mkfifo(path)
    elif how == "an endless device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 42)


@pytest.mark.parametrize("how", ["a pipe", "an endless device", "four tebibytes"])
@pytest.mark.parametrize("name", ["result.json", "task.json", "log.txt"])
def test_show_reads_regular_files_of_a_bounded_size(show, name, how):
    task, run = show

    hand_over(task / name, how)
    said = run()

    if name == "task.json":
        assert said.returncode == 2
        assert "cannot be read" in said.stderr
    else:
        assert said.returncode == 0, said.stderr
        expected = {
            "result.json": "the result cannot be read",
            "log.txt": "The log is not shown",
        }
        assert expected[name] in said.stdout
    assert "Traceback" not in said.stderr


FORGED = {
    "seconds without end": {"seconds": float("inf")},
    "seconds that no float has": {"seconds": 10**400},
    "a state of others": {"state": "\u202edone\x1b[2J"},
    "a name that is a list": {"model": ["a"]},
    "an error without texts": {
        "state": "failed", "output": None,
        "error": {"code": 1, "message": ["a"], "hint": {}},
    },
    "a field more": {"more": 1},
    "fewer nodes than none": {"nodes": {"QNNExecutionProvider": -1}},
}  # fmt: skip


@pytest.mark.parametrize("forged", FORGED)
def test_show_says_that_a_forged_result_is_none(show, forged):
    task, run = show

    facts = json.loads((task / "result.json").read_bytes())
    (task / "result.json").write_text(json.dumps({**facts, **FORGED[forged]}))
    said = run()

    assert said.returncode == 0, said.stderr
    assert "the result cannot be read" in said.stdout
    assert said.stdout.replace("\n", "").isprintable()


def test_show_refuses_a_task_that_is_nested_deeper_than_any(show):
    task, run = show

    (task / "task.json").write_text('{"options":' + "[" * 900 + "]" * 900 + "}")
    said = run("--json")

    assert said.returncode == 2
    assert "not of the form of a task" in said.stderr


def test_the_result_of_another_task_is_not_taken_for_a_lost_one_s(folder, dying):
    (folder / "two.onnx").unlink()
    dying(folder, "forging", "")

    result = run_batch(folder / "fleet.toml")

    (lost,) = by_target(result, "dying")
    assert lost.state == "failed"
    assert "the process that worked on it" in lost.error.message
