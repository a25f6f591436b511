"""Each call of the system of one compile refused, one by one: a typed error, and the
old or the new state.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
from pathlib import Path

import pytest
from faults.pairs import NEW, OLD, Group, OneModel, files, put, staging
from support.system_calls import Failing, heard

from epctx_core import EpctxError

CODES = (errno.EIO, errno.ENOSPC, errno.EACCES)
CALLS_THAT_MATTER = {
    "os.open",
    "os.write",
    "os.fsync",
    "os.replace",
    "os.link",
    "os.mkdir",
    "os.unlink",
    "os.rmdir",
    "os.copy_file_range",
    "os.scandir",
    "mmap.mmap",
    "fcntl.flock",
}


pytestmark = pytest.mark.unobserved("the suite's own look would be refused calls, too")


@pytest.fixture(scope="module")
def one_model(tmp_path_factory):
    return OneModel(tmp_path_factory.mktemp("one_model"))


@pytest.fixture(scope="module")
def share_group(tmp_path_factory):
    return Group(tmp_path_factory.mktemp("share_group"))


def calls_of(pairs):
    """Return the calls of one compile over the older state; everything is imported by
    then.
    """
    put(pairs.out, pairs.states[OLD])
    counting = Failing(0, 0)
    with heard(counting):
        pairs.compile(NEW)
    return counting.calls


def compile_refused(pairs, failing):
    """Compile the new state over the old one while calls are refused; return the error,
    None if it was done.
    """
    put(pairs.out, pairs.states[OLD])
    try:
        with heard(failing):
            pairs.compile(NEW)
    except EpctxError as error:
        return error
    return None


def assert_old_or_new(pairs, error):
    """Assert that an error left the older state and a success the new one, byte for
    byte or by what loads give.
    """
    found = files(pairs.out)
    if found not in pairs.states:
        # The disk also refused to take it back: the next publication will finish it.
        assert error is not None
        assert staging(pairs.out)
        pairs.loaded()
        return
    assert pairs.states.index(found) == (NEW if error is None else OLD)


def assert_next_compile_tidies(pairs):
    pairs.compile(NEW)

    assert files(pairs.out) == pairs.states[NEW]
    assert staging(pairs.out) == []


def system_error_of(error):
    while error is not None and not (
        isinstance(error, OSError) and not isinstance(error, EpctxError)
    ):
        error = error.__cause__
    return error


def refuse_each(pairs, *, codes_of, step=1):
    calls = calls_of(pairs)
    errors = 0
    for n in range(1, len(calls) + 1, step):
        for code in codes_of(n):
            error = compile_refused(pairs, Failing(n, code))

            assert_old_or_new(pairs, error)
            if error is not None:
                errors += 1
                assert error.hint, (n, calls[n - 1])
                # An EP's hook or a look that finds nothing may word it; what the system
                # said is never lost.
                cause = system_error_of(error)
                assert cause is None or cause.errno == code
        if n % 7 == 0 or staging(pairs.out):
            assert_next_compile_tidies(pairs)
    assert errors > len(calls) / step / 4
    return calls


def test_one_refused_call_gives_a_typed_error_and_the_old_state_or_the_new_state(
    one_model,
):
    calls = refuse_each(one_model, codes_of=lambda n: [CODES[n % 3]])

    assert set(calls) >= CALLS_THAT_MATTER
    assert_next_compile_tidies(one_model)


@pytest.mark.stress
def test_one_call_refused_in_every_way_gives_a_typed_error_and_the_old_state_or_the_new_state(
    one_model,
):
    refuse_each(
        one_model, codes_of=lambda _n: (*CODES, errno.EPERM, errno.EMFILE, errno.EROFS)
    )

    assert_next_compile_tidies(one_model)


def dies(pairs, step):
    """Have the disk die at each call in turn, for good; then it works again."""
    calls = calls_of(pairs)
    for n in range(1, len(calls) + 1, step):
        error = compile_refused(pairs, Failing(n, CODES[n % 3], for_ever=True))

        assert error is not None or files(pairs.out) == pairs.states[NEW]
        pairs.loaded()
        assert_next_compile_tidies(pairs)


def test_a_disk_that_dies_during_a_compile_leaves_what_loads_and_what_the_next_compile_tidies(
    one_model,
):
    dies(one_model, step=4)


@pytest.mark.stress
def test_a_disk_that_dies_at_any_call_leaves_what_loads_and_what_the_next_compile_tidies(
    one_model,
):
    dies(one_model, step=1)


def test_one_refused_call_of_a_share_group_gives_the_old_group_or_the_new_one(
    share_group,
):
    refuse_each(share_group, codes_of=lambda n: [CODES[n % 3]], step=5)

    assert_next_compile_tidies(share_group)


@pytest.mark.stress
def test_any_refused_call_of_a_share_group_gives_the_old_group_or_the_new_one(
    share_group,
):
    refuse_each(share_group, codes_of=lambda _n: CODES)
    dies(share_group, step=2)


def test_one_refused_call_of_a_load_gives_a_typed_error_or_the_right_answer(one_model):
    put(one_model.out, one_model.states[NEW])
    counting = Failing(0, 0)
    with heard(counting):
        one_model.loaded()
    errors = 0

    for n in range(1, len(counting.calls) + 1):
        for code in CODES:
            try:
                with heard(Failing(n, code)):
                    which = one_model.loaded()
            except EpctxError as error:
                errors += 1
                assert error.hint, (n, counting.calls[n - 1], error)
            else:
                assert which == [NEW]

    assert errors > len(counting.calls) / 4


def open_files(folder):
    """Return the open files below a folder; others may belong to earlier tests."""
    gc.collect()  # what an error's traceback holds
    opened = [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]
    return [path for path in opened if path.startswith(f"{folder}{os.sep}")]


def test_refused_calls_leave_no_file_open(one_model, caplog, tmp_path):
    caplog.set_level(logging.CRITICAL)  # a record keeps the error that it tells of
    folder = os.path.realpath(one_model.out.parent)
    calls = calls_of(one_model)

    for n in range(1, len(calls) + 1, 3):
        compile_refused(one_model, Failing(n, errno.EIO))

    assert open_files(folder) == []
    with (tmp_path / "open").open("w"):
        assert len(open_files(tmp_path.resolve())) == 1
