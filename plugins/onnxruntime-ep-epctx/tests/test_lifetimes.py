"""Sessions, registrations, threads and the ends of processes: what onnxruntime may still
call is there, and what it has released is gone.
"""

from __future__ import annotations

import json

import onnxruntime_ep_epctx
import pytest
from programs import run_program

BEGIN = """
import atexit, builtins, gc, os, sys, threading
import hosting
from hosting import *

path = make_model(sys.argv[1] + "/small.onnx")
"""
OFFER = """
offer()
"""

MEMORY = """
import ctypes
from onnxruntime_ep_epctx import library

def count():
    gc.collect()
    return len(library.bridge.objects)

class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

def measure():
    # Bytes that are allocated and not freed yet, in all arenas and in mappings: unlike
    # resident memory, no matter of what the allocator gives back.
    gc.collect()
    allocator = ctypes.CDLL(None)
    allocator.mallinfo2.restype = Mallinfo
    info = allocator.mallinfo2()
    return info.uordblks + info.hblkhd
"""


def run_hosted(text, folder, **arguments):
    """Run a program that has a model and an EP; return its output."""
    return run_program(BEGIN + OFFER + text, folder, **arguments).strip()


# -- ends of processes ---------------------------------------------------------------------

KEPT = {
    "a global": "",
    "a cycle": "kept = [session]; kept.append(kept); del session",
    "builtins": "builtins.kept = session; del session",
    "sys.modules": "sys.modules['kept'] = session; del session",
    "a class": "Kept = type('Kept', (), {'session': session}); del session",
    "a thread that has ended": (
        "thread = threading.Thread(target=run_once, args=[session]); "
        "thread.start(); thread.join(); thread.kept = session"
    ),
    "an EP's fault": "FAULTS['kept'] = session; del session",
    "an exception": "sys.last_value = ValueError(session); del session",
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_a_process_ends_cleanly_with_a_session_in(keep, tmp_path):
    text = f"""
session = open_session(path, FAULTY)
print(is_right(session))
{keep}
"""
    assert run_hosted(text, tmp_path) == "True"


def test_a_process_leaves_by_its_own_exit_code_with_a_session(tmp_path):
    text = """
session = open_session(path, FAULTY)
print(is_right(session))
sys.exit(3)
"""
    assert run_hosted(text, tmp_path, code=3) == "True"


def test_a_session_runs_until_the_exit_of_python_and_fails_with_a_status_after(
    tmp_path,
):
    text = """
def run_late():
    print(attempt(run_once, session)[1].partition("epctx: ")[2], flush=True)

# Functions run in the reverse of this order; the EP's way into Python ends between.
atexit.register(run_late)
offer()
atexit.register(lambda: print(is_right(session), flush=True))
session = open_session(path, FAULTY)
"""
    assert run_program(BEGIN + text, tmp_path).splitlines() == [
        "True",
        "Python has ended, so its EPs cannot be used any more.",
    ]


def test_a_run_that_never_ends_does_not_keep_the_process(tmp_path):
    text = """
inside = threading.Event()

def wait(*_):
    inside.set()
    threading.Event().wait()

FAULTS["run"] = wait
session = open_session(path, FAULTY)
threading.Thread(target=run_once, args=[session], daemon=True).start()
assert inside.wait(100)
print("ends")
"""
    assert run_hosted(text, tmp_path) == "ends"


# -- registrations -------------------------------------------------------------------------


def test_sessions_outlive_their_registration_and_devices_come_back(tmp_path):
    text = """
name = f"epctx.{FAULTY}"
session = open_session(path, FAULTY)
found = []
for _ in range(5):
    onnxruntime.unregister_execution_provider_library(name)
    found += [len(list_devices(FAULTY)), is_right(session)]
    bridge.register([FAULTY])
    found += [len(list_devices(FAULTY)), is_right(open_session(path, FAULTY))]
found.append(is_right(session))
onnxruntime.unregister_execution_provider_library(name)
del session
gc.collect()
print(json.dumps(found))
"""
    found = json.loads(run_hosted(text, tmp_path))

    assert found == [0, True, 1, True] * 5 + [True]


def test_a_session_runs_and_is_released_after_its_registration(tmp_path):
    text = """
before = count()
session = open_session(path, FAULTY)
onnxruntime.unregister_execution_provider_library(f"epctx.{FAULTY}")
# Takes what has been freed, of whatever size.
junk = [bytes([255]) * size for size in range(16, 2000) for _ in range(3)]
print(is_right(session))
del session
print(count() - before)
"""
    assert run_hosted(MEMORY + text, tmp_path).splitlines() == ["True", "0"]


def test_two_registrations_of_one_ep_have_a_device_each(tmp_path):
    text = """
onnxruntime.register_execution_provider_library(FAULTY, bridge.get_library_path())
found = []
for device in list_devices(FAULTY):
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([device], {})
    found.append(is_right(onnxruntime.InferenceSession(path, options)))
onnxruntime.unregister_execution_provider_library(FAULTY)
found.append(is_right(open_session(path, FAULTY)))
print(json.dumps(found))
"""
    assert json.loads(run_hosted(text, tmp_path)) == [True, True, True]


def test_a_host_needs_no_import_and_keeps_its_names(tmp_path):
    text = """
import sys
import onnxruntime

folder, here, os, site, attach = "the host's own"[:5]
onnxruntime.register_execution_provider_library("epctx.QNN", sys.argv[1])
print([device.ep_name for device in onnxruntime.get_ep_devices()][1:])
print("onnxruntime_ep_epctx" in sys.modules)
print(folder, here, os, site, attach)
"""
    library = onnxruntime_ep_epctx.get_library_path()

    assert run_program(text, library).splitlines() == [
        "['QNNExecutionProvider']",
        "True",
        "t h e   h",
    ]


def test_a_session_outlives_the_modules_of_the_package(tmp_path):
    text = """
session = open_session(path, FAULTY)
names = [name for name in sys.modules if name.startswith("onnxruntime_ep_epctx")]
for name in names:
    del sys.modules[name]
del hosting.bridge, bridge
gc.collect()
found = [len(names) > 1, is_right(session), is_right(open_session(path, FAULTY))]
del session
gc.collect()
found.append(is_right(open_session(path, FAULTY)))
print(json.dumps(found))
"""
    assert json.loads(run_hosted(text, tmp_path)) == [True] * 4


# -- threads -------------------------------------------------------------------------------

THREADS = """
def run_threads(targets):
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_run_may_make_run_and_release_another_session(tmp_path):
    text = """
single = make_model(sys.argv[1] + "/single.onnx", operators=("MatMul",))
other = [open_session(single, FAULTY)]
session = open_session(path, FAULTY)
right = []

def run_others(given, results, targets):
    del FAULTS["run"]
    other.clear()
    right.append(is_right(open_session(path, FAULTY)))
    if targets is None:
        return results
    for target, result in zip(targets, results):
        target[...] = result
    return targets

FAULTS["run"] = run_others
print(is_right(session), right, is_right(session))
"""
    assert run_hosted(text, tmp_path) == "True [True] True"


def test_a_registration_comes_and_goes_while_sessions_run(tmp_path):
    text = """
session = open_session(path, FAULTY)
right = []
ended = []

def run():
    right.append(is_right(session))
    while not ended:
        right.append(is_right(session))

def register():
    try:
        for _ in range(20):
            onnxruntime.unregister_execution_provider_library(f"epctx.{FAULTY}")
            bridge.register([FAULTY])
            right.append(is_right(open_session(path, FAULTY)))
    finally:
        ended.append(1)

run_threads([run, run, register])
print(len(right) > 21, all(right))
"""
    assert run_hosted(THREADS + text, tmp_path) == "True True"


@pytest.mark.parametrize(("threads", "runs"), [(4, 1000), (64, 50)])
def test_one_session_runs_in_many_threads(threads, runs, tmp_path):
    text = f"""
session = open_session(path, FAULTY)
right = []
run_threads([lambda: right.extend(is_right(session) for _ in range({runs}))] * {threads})
print(len(right), all(right))
"""
    expected = f"{threads * runs} True"

    assert run_hosted(THREADS + text, tmp_path) == expected


def test_parallel_execution_and_asynchronous_runs_are_right(tmp_path):
    text = """
options = onnxruntime.SessionOptions()
options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
options.inter_op_num_threads = 3
options.intra_op_num_threads = 2
options.add_provider_for_devices(list_devices(FAULTY), {})
session = onnxruntime.InferenceSession(path, options)
print(all(is_right(session) for _ in range(100)))

expected = run_once(session)
ended = threading.Event()
got = []

def keep(results, _, message):
    got.append((results, message))
    ended.set()

session.run_async(None, {"x": X}, keep, None)
assert ended.wait(100)
print((got[0][0][0] == expected).all(), repr(got[0][1]))

def fail(*_):
    raise ZeroDivisionError("no tiles")

ended.clear()
FAULTS["run"] = fail
session.run_async(None, {"x": X}, keep, None)
assert ended.wait(100)
print("ZeroDivisionError: no tiles" in got[1][1])
"""
    assert run_hosted(text, tmp_path).splitlines() == ["True", "True ''", "True"]


def test_sessions_are_made_and_released_while_another_one_runs(tmp_path):
    text = """
session = open_session(path, FAULTY)
right = []
made = []

def run():
    # At least once, also if the others are done before.
    right.append(is_right(session))
    while len(made) < 30:
        right.append(is_right(session))

def make():
    for _ in range(10):
        try:
            right.append(is_right(open_session(path, FAULTY)))
        finally:
            made.append(1)

run_threads([run, make, make, make])
print(len(right) > 30, all(right))
"""
    assert run_hosted(THREADS + text, tmp_path) == "True True"


def test_faults_in_many_threads_leave_the_other_runs_right(tmp_path):
    text = """
def fail_at_random(given, results, targets):
    if given[0][0, 0] > 0:
        raise ZeroDivisionError("no tiles")
    return hosting.keep(results, targets)

def keep(results, targets):
    if targets is None:
        return results
    for target, result in zip(targets, results):
        target[...] = result
    return targets

hosting.keep = keep
single = make_model(sys.argv[1] + "/single.onnx", operators=("Mul",))
session = open_session(single, FAULTY)
expected = run_once(session)
FAULTS["run"] = fail_at_random
wrong = []

def run_right():
    for _ in range(200):
        if not (run_once(session) == expected).all():
            wrong.append("another result")

def run_faulty():
    for _ in range(200):
        raised = attempt(session.run, None, {"x": X + 1})
        if raised is None or raised[0] != "RuntimeException":
            wrong.append(raised)

run_threads([run_right, run_faulty] * 2)
print(wrong)
"""
    assert run_hosted(THREADS + text, tmp_path) == "[]"


def test_a_child_of_fork_runs_the_session_and_makes_another_one(tmp_path):
    text = """
session = open_session(path, FAULTY)
run_once(session)
child = os.fork()
if not child:
    try:
        right = is_right(session) and is_right(open_session(path, FAULTY))
    except BaseException:
        right = False
    # onnxruntime's threads are the parent's: an ordinary exit waits for them.
    os._exit(0 if right else 1)
print(os.waitpid(child, 0)[1], is_right(session))
"""
    assert run_hosted(text, tmp_path) == "0 True"


# -- memory --------------------------------------------------------------------------------


def test_what_onnxruntime_releases_is_forgotten(tmp_path):
    text = """
before = count()
session = open_session(path, FAULTY)
opened = count()
del session
found = [opened - before, count() - before]

def fail(*_):
    raise ZeroDivisionError("no tiles")

for hook in ("constructor", "get_capability", "compile"):
    FAULTS[hook] = ZeroDivisionError("no tiles")
    run_attempt(open_session, path, FAULTY)
    FAULTS.clear()
run_attempt(open_session, path, FAULTY, {"level": "3"})
session = open_session(path, FAULTY)
FAULTS["run"] = fail
attempt(run_once, session)
del session
found.append(count() - before)
print(json.dumps(found))
"""
    # The EP and its two kernels.
    assert json.loads(run_hosted(MEMORY + text, tmp_path)) == [3, 0, 0]


def test_sessions_and_runs_leave_no_memory_behind(tmp_path):
    text = """
def make(number):
    for _ in range(number):
        run_once(open_session(path, FAULTY))

make(50)
objects, arrays, before = count(), len(gc.get_objects()), measure()
make(200)
found = {
    "objects": count() - objects,
    "tracked": len(gc.get_objects()) - arrays,
    "sessions": measure() - before,
}

session = open_session(path, FAULTY)
for _ in range(1000):
    run_once(session)
tracked, before = len(gc.get_objects()), measure()
for _ in range(20_000):
    run_once(session)
found["runs"] = measure() - before
found["tracked by runs"] = len(gc.get_objects()) - tracked

def fail(*_):
    raise ZeroDivisionError("no tiles")

FAULTS["run"] = fail
for _ in range(500):
    attempt(run_once, session)
before = measure()
for _ in range(2000):
    attempt(run_once, session)
found["faults"] = measure() - before
print(json.dumps(found))
"""
    # Python's own allocator takes whole arenas, which tells less.
    found = json.loads(
        run_hosted(MEMORY + text, tmp_path, env={"PYTHONMALLOC": "malloc"})
    )
    assert found["objects"] == 0
    # A session's weights are 4 KiB, and its objects are hundreds: 200 sessions that were
    # kept would be far beyond these.
    assert found["tracked"] < 2000
    assert found["tracked by runs"] < 500
    # Bytes: 5 KiB a session, 26 a run, 1 KiB a fault.
    assert found["sessions"] < 1 << 20
    assert found["runs"] < 1 << 19
    assert found["faults"] < 1 << 21
