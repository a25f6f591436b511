"""`ep.compile_timeout`: the time that an EP's compile may take as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support.engine_eps import Alpha
from support.faulty_eps import Faulty, PatientAtB, Slow, Stuck, StuckAtB
from support.isolation import (
    OPERATORS,
    children,
    compiled,
    interrupt_when,
    is_alive,
    nothing_left,
    options_for,
    registry_of,
    source,
    wait_for,
)
from support.share_models import options as share_options
from support.share_models import run, sharing, write_model
from support.sim_eps import OPENVINO, QNN, VITISAI
from support.small_models import chain, example, saved

import epctx_core as epctx

KEY = "ep.compile_timeout"


def limited(*eps, seconds=2, isolate="", **provider_options):
    """Options of a compile with a limit, and without one for a call."""
    options = epctx.SessionOptions()
    for ep in eps:
        options.add_provider(ep.name, provider_options)
    options.add_session_config_entry(KEY, str(seconds))
    options.add_session_config_entry("ep.isolate", isolate)
    return options


def files(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def note(tmp_path, monkeypatch):
    """File in which an EP names its processes."""
    monkeypatch.setenv("EPCTX_TEST_NOTE", str(tmp_path / "note"))
    return tmp_path / "note"


@pytest.mark.parametrize("hook", ["get_capability", "compile", "get_ep_context_nodes"])
def test_a_hook_that_never_returns_ends_with_the_compiles_time(
    tmp_path, temporary, hook
):
    options = limited(Faulty, fault="hang", hook=hook)

    with (
        nothing_left(temporary),
        pytest.raises(epctx.PluginError, match=f"timed out in {hook}") as caught,
    ):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert (caught.value.ep, caught.value.hook) == (Faulty.name, hook)
    assert files(tmp_path / "out") == {}


def test_the_error_says_what_the_ep_was_doing_and_what_to_do(tmp_path):
    options = limited(Stuck, fault="hang")

    with pytest.raises(epctx.PluginError) as caught:
        compiled(tmp_path / "out", source(tmp_path), Stuck, options)

    text = str(caught.value)
    assert text.startswith(
        "StuckExecutionProvider (registered by the host) timed out in compile: its "
        "compile of 'm' was not done within 2 seconds (ep.compile_timeout). It was "
        "compiling 'StuckExecutionProvider_"
    )
    assert text.count("'StuckExecutionProvider_") == 2
    assert "The last progress that it reported was 'tune', 3 of 10, " in text
    assert "Its process was ended." in text
    hint = caught.value.hint or ""
    assert "Set ep.compile_timeout (--timeout) higher" in hint
    assert "epctx plugins info StuckExecutionProvider" in hint
    assert "epctx explain MODEL --ep StuckExecutionProvider" in hint


def test_an_ep_that_reported_nothing_before_it_had_a_partition_is_described_as_such(
    tmp_path,
):
    options = limited(Faulty, fault="hang", hook="get_capability")

    with pytest.raises(
        epctx.PluginError,
        match=r"It had no partition to compile yet\. It reported no progress\.",
    ):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)


def test_the_time_of_all_calls_counts_together(tmp_path):
    """Each call of a slow EP is within the limit; all of them are not."""
    slow = limited(Slow, seconds=3)

    with pytest.raises(
        epctx.PluginError, match="timed out in get_ep_context_nodes"
    ) as caught:
        compiled(tmp_path / "out", source(tmp_path), Slow, slow)

    assert "It had compiled 'SlowExecutionProvider_" in str(caught.value)


def test_a_file_that_was_published_before_stays_as_it_is(tmp_path):
    model = source(tmp_path)
    published = compiled(tmp_path / "out", model, Faulty, limited(Faulty, seconds=60))
    before = files(published)
    compiler = epctx.ModelCompiler(
        limited(Faulty, fault="hang"), model, registry=registry_of(Faulty)
    )

    with pytest.raises(epctx.PluginError, match="timed out"):
        compiler.compile_to_file(published / "m_ctx.onnx")

    assert len(before) == 2
    assert files(published) == before


def test_what_the_ep_started_ends_too(tmp_path, note):
    options = limited(Faulty, fault="leave-a-child")

    with pytest.raises(epctx.PluginError, match="timed out in compile"):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    processes = [int(word) for word in note.read_text().split()]
    assert len(processes) == 2
    assert wait_for(lambda: not any(map(is_alive, processes)))


def test_a_compile_that_is_fast_enough_writes_the_same_bytes(tmp_path, temporary):
    model = source(tmp_path)
    plain = options_for(Alpha, isolate="")

    with nothing_left(temporary):
        written = compiled(tmp_path / "a", model, Alpha, limited(Alpha, seconds=60))

    assert files(written) == files(compiled(tmp_path / "b", model, Alpha, plain))


@pytest.mark.parametrize("isolate", ["", "compile", "all"])
def test_a_session_that_compiles_has_the_limit_too(tmp_path, temporary, isolate):
    options = limited(Stuck, fault="hang", isolate=isolate)

    with (
        nothing_left(temporary),
        pytest.raises(epctx.PluginError, match="timed out in compile") as caught,
    ):
        epctx.InferenceSession(source(tmp_path), options, registry=registry_of(Stuck))

    assert "nothing was published" not in str(caught.value)


def test_a_session_that_compiles_in_time_runs_here(tmp_path, note):
    """A fault of runs that names its process is reached in this one."""
    model = source(tmp_path)
    options = limited(Faulty, seconds=60, fault="note", hook="run")

    with epctx.InferenceSession(
        model, options, registry=registry_of(Faulty)
    ) as session:
        (result,) = session.run(None, {"x": example()})

    with epctx.InferenceSession(model) as plain:
        (expected,) = plain.run(None, {"x": example()})
    assert (result == expected).all()
    assert int(note.read_text()) == os.getpid()


def test_a_session_that_exports_leaves_its_folder_as_it_was(tmp_path):
    model = source(tmp_path)
    options = limited(Faulty, fault="hang")
    options.add_session_config_entry("ep.context_enable", "1")
    before = files(tmp_path)

    with pytest.raises(epctx.PluginError, match="timed out in compile"):
        epctx.InferenceSession(model, options, registry=registry_of(Faulty))

    assert files(tmp_path) == before


def test_a_load_is_not_limited_and_not_isolated(tmp_path, note):
    folder = compiled(
        tmp_path / "out", source(tmp_path), Faulty, limited(Faulty, seconds=60)
    )
    options = limited(Faulty, fault="note-slowly", hook="load_context")

    with epctx.InferenceSession(
        folder / "m_ctx.onnx", options, registry=registry_of(Faulty)
    ) as session:
        assert session.run(None, {"x": example()})

    assert int(note.read_text()) == os.getpid()


def test_runs_out_of_process_are_not_limited(tmp_path):
    options = limited(Slow, seconds=3, isolate="all")
    options.add_session_config_entry("ep.isolate_timeout_seconds", "60")

    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Slow)
    ) as session:
        for _ in range(2):
            assert session.run(None, {"x": example()})


def test_a_call_keeps_a_shorter_limit_of_its_own(tmp_path):
    options = limited(Faulty, seconds=60, isolate="compile", fault="hang")
    options.add_session_config_entry("ep.isolate_timeout_seconds", "1")

    with pytest.raises(
        epctx.PluginError, match="took longer than the 1 seconds that it had"
    ):
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)


def test_cancelling_goes_before_the_limit(tmp_path):
    options = limited(Stuck, fault="hang", seconds=60)

    def cancel(stage, _done, _total):
        options.set_load_cancellation_flag(
            stage == "tune" or options.cancellation.requested
        )

    compiler = epctx.ModelCompiler(
        options, source(tmp_path), progress=cancel, registry=registry_of(Stuck)
    )

    with pytest.raises(epctx.ModelLoadCanceled):
        compiler.compile_to_file()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_compile_with_a_limit_and_its_processes(
    tmp_path, temporary, note
):
    options = limited(Faulty, seconds=60, fault="leave-a-child")

    with nothing_left(temporary), pytest.raises(KeyboardInterrupt):
        interrupt_when(note.exists)
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    processes = [int(word) for word in note.read_text().split()]
    assert wait_for(lambda: not any(map(is_alive, processes)))
    assert files(tmp_path / "out") == {}


def test_a_class_that_no_other_process_can_import_says_so(tmp_path):
    class Local(Alpha):
        name = "LocalExecutionProvider"

    with pytest.raises(
        epctx.PluginError, match="cannot be used in a process of its own"
    ) as caught:
        compiled(tmp_path / "out", source(tmp_path), Local, limited(Local))

    assert "ep.compile_timeout" in (caught.value.hint or "")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "1000000"])
def test_a_limit_is_a_whole_number_of_seconds(value):
    with pytest.raises(
        epctx.InvalidArgument, match="a whole number of seconds from 1 to 999999"
    ):
        epctx.SessionOptions().add_session_config_entry(KEY, value)


def test_the_cache_keeps_nothing_of_a_compile_that_took_too_long(tmp_path):
    model = source(tmp_path)
    cache = tmp_path / "cache"
    registry = registry_of(Faulty)
    with pytest.raises(epctx.PluginError, match="timed out in compile"):
        epctx.load_or_compile(
            model, limited(Faulty, fault="hang"), cache_dir=cache, registry=registry
        )

    assert [path for path in files(cache) if path.suffix == ".onnx"] == []


def test_the_limit_is_no_part_of_a_caches_key(tmp_path):
    model = source(tmp_path)
    arguments = {"cache_dir": tmp_path / "cache", "registry": registry_of(Alpha)}

    first = epctx.compile_cached(model, limited(Alpha, seconds=60), **arguments)
    second = epctx.compile_cached(
        model, options_for(Alpha, isolate="", isolate_timeout_seconds=5), **arguments
    )

    assert first == second


def grouped(folder, models, options, **arguments):
    """Compile models into one share group; return what was written."""
    folder.mkdir()
    with epctx.ShareGroup(folder, **arguments) as group:
        for model in models:
            group.compile(model, options)
    return files(folder)


@pytest.fixture
def models(tmp_path):
    """Two models for a share group."""
    return [
        saved(chain(operators), tmp_path / f"{name}.onnx")
        for name, operators in (("a", OPERATORS), ("b", OPERATORS[1:]))
    ]


def test_a_share_group_has_the_limit_for_each_of_its_models(
    tmp_path, temporary, models
):
    with (
        nothing_left(temporary),
        pytest.raises(epctx.PluginError, match="timed out in compile") as caught,
    ):
        grouped(
            tmp_path / "out",
            models,
            limited(Stuck, fault="hang"),
            registry=registry_of(Stuck),
        )

    assert "its compile of 'a' was not done" in str(caught.value)
    assert files(tmp_path / "out") == {}


def test_a_first_model_that_takes_too_long_leaves_its_share_group_as_it_was(
    tmp_path, temporary, models
):
    (tmp_path / "out").mkdir()
    with (
        nothing_left(temporary),
        epctx.ShareGroup(
            tmp_path / "out", registry=registry_of(StuckAtB, PatientAtB)
        ) as group,
    ):
        with pytest.raises(epctx.PluginError, match="compile of 'b' was not done"):
            group.compile(models[1], limited(StuckAtB, fault="hang"))
        group.compile(models[0], limited(PatientAtB, seconds=60))

    assert sorted(map(str, files(tmp_path / "out"))) == [
        "a_ctx.onnx",
        "a_patient_at_b.bin",
    ]


def test_a_first_model_that_fails_leaves_no_process_behind(tmp_path, models):
    (tmp_path / "out").mkdir()
    before = children()
    with epctx.ShareGroup(tmp_path / "out", registry=registry_of(PatientAtB)) as group:
        for _ in range(3):
            with pytest.raises(epctx.NoSuchFile):
                group.compile(tmp_path / "no.onnx", limited(PatientAtB, seconds=60))
            assert children() == before
        group.compile(models[0], limited(PatientAtB, seconds=60))


def test_a_share_group_ends_however_its_ep_is_spelled(tmp_path, temporary, models):
    with nothing_left(temporary):
        for model, name, stop in zip(models, ["QNN", QNN], [False, True], strict=True):
            options = sharing(name, stop=stop, ep__compile_timeout=60)
            epctx.ModelCompiler(options, model).compile_to_file()


def test_the_end_of_a_share_group_ends_no_other_one_in_its_folder(
    tmp_path, temporary, models
):
    """Groups that session options drive; their members wait for their own end."""

    def compile_into_group(ep, number, *, stop=False):
        options = sharing(ep, stop=stop, ep__compile_timeout=60)
        path = models[number].with_name(f"{ep}_{number}_ctx.onnx")
        epctx.ModelCompiler(options, models[number]).compile_to_file(path)
        return path

    with nothing_left(temporary):
        written = [
            compile_into_group(QNN, 0),
            compile_into_group(OPENVINO, 0),
            compile_into_group(QNN, 1, stop=True),
            compile_into_group(OPENVINO, 1, stop=True),
        ]

    for path in written:
        epctx.InferenceSession(path).close()


def test_a_later_model_that_takes_too_long_ends_its_share_group(
    tmp_path, temporary, models
):
    options = limited(StuckAtB, fault="hang")
    (tmp_path / "out").mkdir()
    with (
        nothing_left(temporary),
        epctx.ShareGroup(tmp_path / "out", registry=registry_of(StuckAtB)) as group,
    ):
        group.compile(models[0], options)
        with pytest.raises(epctx.PluginError, match="compile of 'b' was not done"):
            group.compile(models[1], options)

        with pytest.raises(
            epctx.PluginError,
            match="compile of 'b' was not done",
        ):
            group.finish()
        group.discard()

    assert files(tmp_path / "out") == {}


def test_a_cancelled_model_leaves_its_share_group_as_it_was(
    tmp_path, temporary, models
):
    cancelled = limited(PatientAtB, seconds=60)

    def cancel(stage, _done, _total):
        if stage == "compile" and group.is_second:
            cancelled.set_load_cancellation_flag(True)

    class Group(epctx.ShareGroup):
        is_second = False

    (tmp_path / "out").mkdir()
    registry = registry_of(PatientAtB)
    with (
        nothing_left(temporary),
        Group(tmp_path / "out", progress=cancel, registry=registry) as group,
    ):
        group.compile(models[0], limited(PatientAtB, seconds=60))
        group.is_second = True
        with pytest.raises(epctx.ModelLoadCanceled):
            group.compile(models[1], cancelled)

    assert sorted(map(str, files(tmp_path / "out"))) == [
        "a_ctx.onnx",
        "a_patient_at_b.bin",
    ]


@pytest.mark.parametrize("ep", [QNN, OPENVINO, VITISAI])
@pytest.mark.parametrize("key", ["ep.compile_timeout", "ep.isolate"])
def test_a_share_group_out_of_process_writes_the_same_bytes(
    tmp_path, temporary, ep, key
):
    sources = [
        write_model(ep, tmp_path / f"{name}.onnx", rows)
        for name, rows in (("a", 1), ("b", 4))
    ]
    isolated = share_options(ep)
    isolated.add_session_config_entry(
        key, {"ep.compile_timeout": "60", "ep.isolate": "compile"}[key]
    )

    with nothing_left(temporary):
        written = grouped(tmp_path / "out", sources, isolated)

    assert len(written) == 3
    assert written == grouped(tmp_path / "plain", sources, share_options(ep))


def test_members_of_a_group_may_be_compiled_in_threads_with_a_limit(
    tmp_path, temporary
):
    sources = [write_model(QNN, tmp_path / f"{n}.onnx", n + 1) for n in range(4)]

    def compile_member(source, **entries):
        options = share_options(
            QNN, ep__share_ep_contexts=1, ep__compile_timeout=60, **entries
        )
        target = tmp_path / "out" / f"{source.stem}_ctx.onnx"
        epctx.ModelCompiler(options, source).compile_to_file(target)
        return target

    (tmp_path / "out").mkdir()
    with nothing_left(temporary):
        first = compile_member(sources[0])
        with ThreadPoolExecutor(2) as pool:
            others = list(pool.map(compile_member, sources[1:3]))
        last = compile_member(sources[3], ep__stop_share_ep_contexts=1)

    for rows, path in enumerate([first, *others, last], 1):
        np.testing.assert_allclose(
            run(path, rows, share_options(QNN)), run(sources[rows - 1], rows), atol=1e-4
        )


@pytest.mark.parametrize("key", ["ep.compile_timeout", "ep.isolate"])
def test_a_session_of_a_share_group_cannot_compile_out_of_process(
    tmp_path, temporary, key
):
    options = share_options(QNN, ep__share_ep_contexts=1, ep__context_enable=1)
    options.add_session_config_entry(
        key, {"ep.compile_timeout": "60", "ep.isolate": "compile"}[key]
    )

    with (
        nothing_left(temporary),
        pytest.raises(
            epctx.InvalidArgument, match=r"share_ep_contexts=1.* ep\.compile_timeout"
        ),
    ):
        epctx.InferenceSession(write_model(QNN, tmp_path / "a.onnx", 1), options)


PROGRAM = """
import sys
from support.share_models import options
from support.sim_eps import QNN
import epctx_core as epctx

limited = options(QNN, ep__share_ep_contexts=1, ep__compile_timeout=60)
epctx.ModelCompiler(limited, sys.argv[1]).compile_to_file()
"""


def test_a_group_that_is_never_stopped_keeps_no_interpreter_from_ending(tmp_path):
    model = write_model(QNN, tmp_path / "a.onnx", 1)

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, model],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == 0
    assert "a share group was never stopped" in done.stderr
    assert "Traceback" not in done.stderr
