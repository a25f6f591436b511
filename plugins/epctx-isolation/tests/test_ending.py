"""Ends of an isolated EP's work; nothing of it outlives its host."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.faulty_eps import Faulty, Patient, Stuck
from support.isolation import (
    compiled,
    interrupt_when,
    is_alive,
    nothing_left,
    options_for,
    registry_of,
    source,
    wait_for,
)
from support.small_models import example

import epctx_core as epctx

PROGRAM = """
import sys
from pathlib import Path
from support.faulty_eps import Faulty
from support.isolation import options_for, registry_of
import epctx_core as epctx

options = options_for(Faulty, provider_options={"fault": sys.argv[2]}, isolate_timeout_seconds=int(sys.argv[3]))
print(epctx.ModelCompiler(options, sys.argv[1], registry=registry_of(Faulty)).compile_to_file().outputs[-1].path)
"""
"""A host without a guard for `__main__`."""


def run_host(folder, text, *arguments, seconds=60):
    """Run a program of a host in a process of its own; return how it ended."""
    program = folder / "host.py"
    program.write_text(text)
    return subprocess.run(
        [sys.executable, program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=seconds,
        text=True,
        check=False,
    )


@pytest.fixture
def note(tmp_path, monkeypatch):
    """File in which an EP names its process."""
    monkeypatch.setenv("EPCTX_TEST_NOTE", str(tmp_path / "note"))
    return tmp_path / "note"


@pytest.fixture
def services(note):
    """Processes that an EP left behind, as a function that gives their numbers; they
    end with the test.
    """

    def started():
        return (
            [int(line) for line in note.read_text().splitlines()]
            if note.exists()
            else []
        )

    yield started
    for service in started():
        with suppress(OSError):
            os.kill(service, signal.SIGKILL)


def test_an_ep_that_looks_at_the_hosts_wish_to_stop_ends_by_itself(tmp_path, temporary):
    options = options_for(Patient)

    def cancel(stage, _done, _total):
        options.set_load_cancellation_flag(
            stage == "compile" or options.cancellation.requested
        )

    compiler = epctx.ModelCompiler(
        options, source(tmp_path), progress=cancel, registry=registry_of(Patient)
    )

    with nothing_left(temporary), pytest.raises(epctx.ModelLoadCanceled):
        compiler.compile_to_file()


@pytest.mark.parametrize("fault", ["child-and-crash", "child-and-return"])
def test_what_an_ep_started_ends_with_its_process(tmp_path, temporary, note, fault):
    options = options_for(Faulty, provider_options={"fault": fault})

    with nothing_left(temporary), suppress(epctx.PluginError):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert wait_for(lambda: not is_alive(int(note.read_text())))


@pytest.mark.parametrize(
    ("fault", "seconds", "how"),
    [
        ("service-and-crash", 20, "it was ended by SIGSEGV"),
        ("service-and-hang", 2, "it took longer than the 2 seconds"),
    ],
)
def test_a_service_that_an_ep_left_behind_keeps_no_host_waiting(
    tmp_path, temporary, services, fault, seconds, how
):
    options = options_for(
        Faulty, provider_options={"fault": fault}, isolate_timeout_seconds=seconds
    )

    with nothing_left(temporary), pytest.raises(epctx.PluginError, match=how):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    (service,) = services()
    assert is_alive(service), "it left the group, so it is not the host's to end"


@pytest.mark.parametrize(
    ("isolate", "hook"), [("all", "run"), ("all", "shutdown"), ("compile", "compile")]
)
def test_services_that_eps_left_behind_cost_a_host_no_thread_and_no_descriptor(
    tmp_path, temporary, services, isolate, hook
):
    options = options_for(
        Faulty, isolate=isolate, provider_options={"fault": "service", "hook": hook}
    )
    model = source(tmp_path)

    with nothing_left(temporary):
        for _ in range(2):
            with epctx.InferenceSession(
                model, options, registry=registry_of(Faulty)
            ) as session:
                session.run(None, {"x": example()})

    assert wait_for(lambda: len(services()) >= 2)
    assert all(map(is_alive, services()))


@pytest.mark.parametrize("fault", ["reading-service", "printing-service"])
def test_a_service_at_the_pipe_for_printed_output_keeps_no_host_waiting(
    tmp_path, temporary, services, fault
):
    options = options_for(Faulty, provider_options={"fault": fault})

    with nothing_left(temporary):
        for number in range(2):
            compiled(tmp_path / f"out {number}", source(tmp_path), Faulty, options)

    assert len(services()) == 2
    assert all(map(is_alive, services()))


def test_a_crash_is_noticed_though_a_forked_process_holds_the_line(tmp_path, temporary):
    options = options_for(
        Faulty, provider_options={"fault": "fork-and-crash"}, isolate_timeout_seconds=20
    )

    with (
        nothing_left(temporary),
        pytest.raises(epctx.PluginError, match="it was ended by SIGSEGV"),
    ):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)


def test_the_start_of_an_ep_may_take_longer_than_a_call(tmp_path):
    options = options_for(
        Faulty,
        provider_options={"fault": "slow-start", "hook": "__init__"},
        isolate_timeout_seconds=4,
    )

    folder = compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert (folder / "m_ctx.onnx").exists()


def test_a_callback_of_the_host_may_take_longer_than_a_call_of_an_ep(tmp_path):
    options = options_for(Stuck, isolate_timeout_seconds=4)

    def progress(stage, _done, _total):
        if stage == "tune":
            time.sleep(5)

    folder = compiled(
        tmp_path / "out", source(tmp_path), Stuck, options, progress=progress
    )

    assert (folder / "m_ctx.onnx").exists()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_call_and_the_process(tmp_path, temporary, note):
    options = options_for(Faulty, provider_options={"fault": "leave-a-child"})
    compiler = epctx.ModelCompiler(
        options, source(tmp_path), registry=registry_of(Faulty)
    )
    interrupt_when(note.exists)

    with nothing_left(temporary), pytest.raises(KeyboardInterrupt):
        compiler.compile_to_file()


@pytest.mark.usefixtures("interruptible")
def test_a_session_whose_run_was_interrupted_says_that_a_new_one_is_needed(
    tmp_path, temporary, note
):
    """No plugin is at fault, so that no vendor is to hear of it."""
    faults = {"fault": "leave-a-child", "hook": "run"}
    options = options_for(Faulty, isolate="all", provider_options=faults)
    interrupt_when(note.exists)

    with (
        nothing_left(temporary),
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Faulty)
        ) as session,
    ):
        with pytest.raises(KeyboardInterrupt):
            session.run(None, {"x": example()})
        with pytest.raises(epctx.PluginError, match="its call was") as raised:
            session.run(None, {"x": example()})

    assert raised.value.hint.startswith("Make a new session: ")
    assert "vendor" not in raised.value.hint


@pytest.mark.parametrize(
    ("fault", "seconds"), [("leave-a-child", 600), ("native-hang", 2)]
)
def test_a_host_that_is_killed_takes_the_process_with_it_at_the_latest_when_its_time_is_over(
    tmp_path, note, fault, seconds
):
    program = tmp_path / "host.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    host = subprocess.Popen(
        [sys.executable, program, source(tmp_path), fault, str(seconds)],
        env=environment,
    )
    started = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    assert wait_for(note.exists)
    child = int(started.read_text().split()[0])

    host.kill()
    host.wait()

    assert wait_for(lambda: not is_alive(child), seconds=10)
    if fault == "leave-a-child":
        _, grandchild = map(int, note.read_text().split())
        assert wait_for(lambda: not is_alive(grandchild))


HANGING = """
import os, sys, threading
from support.faulty_eps import Faulty
from support.isolation import options_for, registry_of, wait_for
from support.small_models import example
import epctx_core as epctx

options = options_for(Faulty, isolate="all", provider_options={"fault": "note-and-hang", "hook": "run"}, isolate_timeout_seconds=600)
options.add_session_config_entry("ep.share_ep_contexts", sys.argv[2])
session = epctx.InferenceSession(sys.argv[1], options, registry=registry_of(Faulty))
run = threading.Thread(target=session.run, args=(None, {"x": example()}), daemon=True)
run.start()
assert wait_for(lambda: os.path.exists(os.environ["EPCTX_TEST_NOTE"]))
"""


LEFT_OPEN = """
import sys
from support.engine_eps import Alpha
from support.small_models import example
from support.isolation import options_for, registry_of
import epctx_core as epctx

options = options_for(Alpha, isolate="all")
options.add_session_config_entry("ep.share_ep_contexts", sys.argv[2])
session = epctx.InferenceSession(sys.argv[1], options, registry=registry_of(Alpha))
session.run(None, {"x": example()})
session.itself = session
"""


@pytest.mark.parametrize("shares", ["0", "1"])
def test_a_session_that_is_left_open_says_nothing_when_the_host_ends(tmp_path, shares):
    done = run_host(tmp_path, LEFT_OPEN, source(tmp_path), shares, seconds=120)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shares", ["0", "1"])
def test_a_host_whose_thread_waits_for_a_run_that_hangs_can_end(tmp_path, note, shares):
    done = run_host(tmp_path, HANGING, source(tmp_path), shares, seconds=120)

    assert done.returncode == 0, done.stderr
    assert wait_for(lambda: not is_alive(int(note.read_text())))


def test_a_host_needs_no_guard_for_its_main_module(tmp_path):
    done = run_host(tmp_path, PROGRAM, source(tmp_path), "print", "60")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == "m_ctx.onnx"
    assert (tmp_path / "m_faulty.bin").exists()


def test_a_host_may_ignore_that_its_children_end(tmp_path):
    ignoring = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"

    done = run_host(tmp_path, ignoring + PROGRAM, source(tmp_path), "print", "60")

    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "m_ctx.onnx", "")


def test_a_session_ends_its_process_when_it_is_closed(tmp_path, temporary, note):
    options = options_for(
        Faulty, isolate="all", provider_options={"fault": "note", "hook": "run"}
    )

    with (
        nothing_left(temporary),
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Faulty)
        ) as session,
    ):
        session.run(None, {"x": example()})
        alive = is_alive(int(note.read_text()))

    assert alive
    assert not is_alive(int(note.read_text()))
    assert int(note.read_text()) != os.getpid()


@pytest.mark.parametrize("fault", ["exit", "value-error"])
def test_a_shutdown_that_fails_is_logged_and_leaves_nothing(
    tmp_path, temporary, caplog, fault
):
    options = options_for(Faulty, provider_options={"fault": fault, "hook": "shutdown"})

    with nothing_left(temporary):
        written = compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert len(list(written.iterdir())) == 2
    assert re.search(
        r"shutdown of FaultyExec|FaultyExec.* failed in shutdown", caplog.text
    )
