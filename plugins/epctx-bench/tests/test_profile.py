"""Profiles: files that Perfetto opens, of sessions and compiles."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from epctx_bench import profile as profiles
from epctx_bench.profile import Profile

import epctx_core as epctx
from epctx_core.errors import Fail

pytestmark = pytest.mark.internal

X = {"x": np.ones((2, 4), np.float32)}


@pytest.fixture
def model(tmp_path):
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) '
        "{ a = Relu (x) b = Add (a, x) c = Sigmoid (b) y = Mul (c, a) }"
    )
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    return path


@pytest.fixture
def options(tmp_path):
    made = epctx.SessionOptions()
    made.add_provider("QNN")
    made.enable_profiling = True
    made.profile_file_prefix = str(tmp_path / "profile")
    return made


def read(path):
    """Return the recorded events of a profile."""
    return [e for e in json.loads(Path(path).read_text()) if e["ph"] == "X"]


def test_a_session_writes_its_profile_when_it_is_asked_to(model, options):
    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)
        path = session.end_profiling()
        session.run(None, X)

        assert session.end_profiling() == path
    categories = [event["cat"] for event in read(path)]
    assert categories.count("run") == 1
    assert {"stage", "hook", "run", "step"} <= set(categories)


def test_a_session_without_a_profile_gives_no_path(model):
    with epctx.InferenceSession(model) as session:
        assert session.end_profiling() == ""


def test_a_session_writes_its_profile_when_it_is_closed(model, options, tmp_path):
    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)
        assert not list(tmp_path.glob("profile*"))

    (path,) = tmp_path.glob("profile*.json")
    assert "shutdown" in {event["name"] for event in read(path)}


def test_a_compile_writes_a_profile_too(model, options, tmp_path):
    epctx.ModelCompiler(options, model).compile_to_file()

    (path,) = tmp_path.glob("profile*.json")
    names = [event["name"] for event in read(path)]
    assert {"read", "get_capability", "compile", "read_back"} <= set(names)


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_each_profile_has_work_wherever_the_ep_does_it(
    model, options, tmp_path, isolate
):
    options.add_session_config_entry("ep.isolate", isolate)

    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)

    recorded = [read(path) for path in tmp_path.glob("profile*.json")]
    assert all(recorded)
    names = {event["name"] for events in recorded for event in events}
    assert {"get_capability", "compile", "run"} <= names


def test_spans_of_a_thread_nest(model, options):
    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)
        path = session.end_profiling()

    open_until = []
    for event in read(path):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"]:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3
        open_until.append(end)


def test_a_step_has_the_numbers_that_an_explanation_has(model, options):
    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)
        path = session.end_profiling()

    eps = {node.index: node.ep for node in epctx.explain_model(model, options).nodes}
    steps = [event["args"] for event in read(path) if event["cat"] == "step"]
    assert sorted(n for step in steps for n in step["nodes"]) == sorted(eps)
    assert all(eps[n] == step["ep"] for step in steps for n in step["nodes"])


def test_profiles_of_one_second_have_names_of_their_own(model, options):
    paths = []
    for _ in range(3):
        with epctx.InferenceSession(model, options) as session:
            paths.append(session.end_profiling())

    assert len(set(paths)) == 3


def test_one_object_records_what_several_sessions_do(model, tmp_path):
    profile = Profile()
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    options.add_host_plugin(profile)
    epctx.ModelCompiler(options, model).compile_to_file()
    with epctx.InferenceSession(tmp_path / "m_ctx.onnx", options) as session:
        session.run(None, X)

    profile.write(tmp_path / "all.json")

    names = [event["name"] for event in read(tmp_path / "all.json")]
    assert names.count("compile") == 2, "the stage and the hook"
    assert names.count("run") == 1


def test_a_profile_that_cannot_be_written_is_an_error_that_says_so(
    model, options, tmp_path
):
    options.profile_file_prefix = str(tmp_path / "missing" / "profile")
    with (
        epctx.InferenceSession(model, options) as session,
        pytest.raises(Fail, match="writing the profile failed: No such file"),
    ):
        session.end_profiling()


def test_a_profile_is_bounded(model, options, monkeypatch):
    monkeypatch.setattr(profiles, "MOST_EVENTS", 20)
    with epctx.InferenceSession(model, options) as session:
        for _ in range(30):
            session.run(None, X)
        path = session.end_profiling()

    assert len(read(path)) == 20
    assert "later events are missing" in Path(path).read_text()


def test_facts_are_bounded():
    nested = "deep"
    for _ in range(2000):
        nested = [nested]
    profile = Profile()
    with profile.span("work", "ep", {"nested": nested, "text": "x" * 10**6}):
        pass

    (event,) = [e for e in profile.events() if e["ph"] == "X"]
    assert len(json.dumps(event)) < 5000


def test_events_are_listed_while_threads_record(model):
    profile = Profile()

    def record():
        with profile.span("work", "ep", {}):
            pass

    stop = threading.Event()

    def start_threads():
        while not stop.is_set():
            thread = threading.Thread(target=record)
            thread.start()
            thread.join()

    starter = threading.Thread(target=start_threads)
    starter.start()
    try:
        for _ in range(300):
            profile.events()
    finally:
        stop.set()
        starter.join()


def test_perfetto_reads_a_profile(model, options):
    from perfetto.trace_processor import TraceProcessor

    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)
        path = session.end_profiling()
    try:
        processor = TraceProcessor(trace=path)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"perfetto's own program cannot be downloaded: {error}")

    with processor:
        rows = list(
            processor.query(
                "select s.name, s.category as kind, s.depth, p.name as parent "
                "from slice s left join slice p on s.parent_id = p.id"
            )
        )

    assert {row.kind for row in rows} >= {"stage", "hook", "run", "step"}
    assert {row.parent for row in rows if row.kind == "step"} == {"run"}
    assert {row.parent for row in rows if row.name == "load_context"} <= {"load"}


def test_the_process_and_its_threads_have_names(model, options):
    with epctx.InferenceSession(model, options) as session:
        session.run(None, X)
        path = session.end_profiling()

    named = {
        event["name"]: event["args"]["name"]
        for event in json.loads(Path(path).read_text())
        if event["ph"] == "M"
    }
    assert named == {"process_name": "epctx", "thread_name": "MainThread"}
    assert {event["pid"] for event in read(path)} == {os.getpid()}
