"""A cache that cannot be used: the model is compiled all the same, with one warning."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from epctx_cache import request
from epctx_cache.store import check_whole
from support.sim_eps import CPU, QNN, with_eps
from support.small_models import example

import epctx_core as epctx

pytestmark = pytest.mark.internal


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch):
    monkeypatch.setattr(request, "_warned", set())


@pytest.fixture
def expected(model):
    with epctx.InferenceSession(model, with_eps(QNN)) as session:
        return session.run(None, {"x": example()})[0]


def answer(session):
    with session:
        assert session.get_providers() == [QNN, CPU]
        return session.run(None, {"x": example()})[0]


@contextmanager
def failing_call(number, code):
    """Make the n-th call fail that brings something to disk or takes it away."""
    seen = 0

    def before(original):
        def call(*arguments, **keywords):
            nonlocal seen
            seen += 1
            if seen == number:
                raise OSError(code, os.strerror(code))
            return original(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "fsync",
            "rename",
            "replace",
            "mkdir",
            "link",
            "ftruncate",
            "rmdir",
            "unlink",
        ):
            patch.setattr(os, name, before(getattr(os, name)))
        yield lambda: seen


@contextmanager
def vanishing_before_call(number, folder):
    """Remove a folder before the n-th call that brings something to disk or opens or
    looks at a file.
    """
    seen = 0
    is_removing = False

    def before(original):
        def call(*arguments, **keywords):
            nonlocal seen, is_removing
            if not is_removing:
                seen += 1
                if seen == number:
                    is_removing = True
                    shutil.rmtree(folder, ignore_errors=True)
                    is_removing = False
            return original(*arguments, **keywords)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "rename", "replace", "mkdir", "link", "open", "utime"):
            patch.setattr(os, name, before(getattr(os, name)))
        yield lambda: seen


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_each_call_may_fail_and_the_session_is_there(
    cache, model, expected, code, monkeypatch
):
    number, calls = 0, 1
    while number <= calls:
        number += 1
        monkeypatch.setattr(request, "_warned", set())
        for key in cache.keys:
            cache.store.remove(key)

        with failing_call(number, code) as count:
            session = cache.session(model, with_eps(QNN))
            calls = max(calls, count())

        assert np.array_equal(answer(session), expected)
        for key in cache.keys:
            with cache.store.open(key) as lease:
                check_whole(lease.folder, lease.record)
    assert calls > 12
    assert len(cache.warnings) > 5


def test_a_folder_that_vanishes_during_a_compile_gives_a_session_and_one_warning(
    cache, model, expected, monkeypatch
):
    number, calls = 0, 1
    while number <= calls:
        number += 1
        monkeypatch.setattr(request, "_warned", set())
        warned = len(cache.warnings)

        with vanishing_before_call(number, cache.folder) as count:
            session = cache.session(model, with_eps(QNN))
            calls = max(calls, count())

        assert np.array_equal(answer(session), expected)
        assert len(cache.warnings) - warned <= 1
        shutil.rmtree(cache.folder, ignore_errors=True)
    assert calls > 12
    assert cache.warnings


def test_a_folder_that_cannot_be_made_gives_one_warning(cache, model, expected):
    cache.folder.write_text("a file where the cache should be")

    answers = [answer(cache.session(model)) for _ in range(3)]

    assert all(np.array_equal(a, expected) for a in answers)
    (warning,) = cache.warnings
    assert str(cache.folder) in warning
    assert "cannot be used" in warning


def test_the_warning_of_a_file_that_cannot_be_written_is_one_sentence(
    cache, model, monkeypatch
):
    """The hint of the error within would be a second line, behind a second full stop."""

    def fail(self, path):
        hint = "Check the disk and the folder, then try again."
        raise epctx.Fail("writing failed: File too large.", path=path, hint=hint)

    monkeypatch.setattr(epctx.ModelCompiler, "compile_to_file", fail)

    cache.session(model).close()

    (warning,) = cache.warnings
    assert warning.endswith(" cannot be used: writing failed: File too large.")
    with pytest.raises(epctx.Fail) as raised:
        cache.path(model)
    assert raised.value.message.endswith(": writing failed: File too large.")


def test_a_path_in_a_cache_that_cannot_be_used_is_an_error(cache, model):
    cache.folder.write_text("")

    with pytest.raises(epctx.Fail, match="cannot be used") as caught:
        cache.path(model)

    assert caught.value.path == cache.folder
    assert isinstance(caught.value.__cause__, OSError)
    assert "EPCTX_CACHE_DIR" in caught.value.hint


def test_a_cache_that_can_only_be_read_gives_hits(cache, model, expected, monkeypatch):
    cache.path(model)

    def refused(*_arguments, **_keywords):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("rename", "replace", "mkdir", "link", "utime"):
        monkeypatch.setattr(os, name, refused)

    assert np.array_equal(answer(cache.session(model)), expected)
    assert cache.warnings == []


def test_a_file_system_without_locks_gives_a_session(
    cache, model, expected, monkeypatch
):
    def no_locks(*_arguments):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)

    assert np.array_equal(answer(cache.session(model)), expected)
    assert "No locks available" in cache.warnings[0]


def test_without_a_cache_the_whole_model_is_optimised_as_asked(cache, model, expected):
    cache.folder.write_text("")

    session = cache.session(
        model, graph_optimization_level=epctx.GraphOptimizationLevel.ORT_ENABLE_BASIC
    )

    assert np.allclose(answer(session), expected, atol=1e-6)


def test_an_error_of_the_ep_is_no_fault_of_the_cache(cache, model, monkeypatch):
    cls = epctx.Registry().load(epctx.Registry().resolve("QNN"))

    def compile(self, partitions):  # noqa: A001 - the hook's name
        raise RuntimeError("no such chip")

    from epctx_core.plugin import hookimpl

    monkeypatch.setattr(cls, "compile", hookimpl(compile))

    with pytest.raises(epctx.EPFail, match="no such chip"):
        cache.session(model)
    assert cache.warnings == []
    assert cache.keys == set()


def test_all_folders_are_the_users_alone_whatever_the_umask(cache, model):
    before = os.umask(0)
    try:
        cache.path(model)
    finally:
        os.umask(before)

    folders = [
        cache.folder,
        *(path for path in cache.folder.rglob("*") if path.is_dir()),
    ]

    assert len(folders) > 5
    # What an entry holds is published as into any folder, and nobody else gets there.
    inner = {path for path in folders if "entries" in path.parts}
    assert {path.stat().st_mode & 0o777 for path in folders if path not in inner} == {
        0o700
    }
    assert cache.warnings == []


@pytest.mark.parametrize(
    ("mode", "words"),
    [(0o777, "can be written by other users"), (0o770, "can be written")],
)
def test_a_cache_that_others_can_write_to_is_a_warning_once(
    cache, model, expected, mode, words
):
    cache.folder.mkdir()
    cache.folder.chmod(mode)

    answers = [answer(cache.session(model)) for _ in range(2)]

    assert all(np.array_equal(a, expected) for a in answers)
    assert len(cache.warnings) == 1
    assert words in cache.warnings[0]
    assert "chmod 700" in cache.warnings[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_cache_of_another_user_is_a_warning(cache, model, expected):
    cache.folder.mkdir(mode=0o700)
    os.chown(cache.folder, 4711, 4711)

    assert np.array_equal(answer(cache.session(model)), expected)
    assert "belongs to another user" in cache.warnings[0]
