"""Measuring processes: what they leave running keeps nobody waiting, and what they
say when they fail.
"""

from __future__ import annotations

import time

import psutil
import pytest
from epctx_bench import children
from epctx_bench.children import Request, ask_child
from epctx_bench.settings import BenchSettings

from epctx_core.errors import Fail

pytestmark = pytest.mark.internal

SERVICE = """
import json, subprocess, sys
json.load(sys.stdin)
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
{end}
print(json.dumps({{"started": started.pid}}))
"""


def ask(timeout):
    settings = BenchSettings(child_timeout=timeout)
    return ask_child(
        Request(task="use", engine="epctx", model="m.onnx", settings=settings)
    )


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Have measuring processes run a script."""

    def use(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        monkeypatch.setattr(children, "_COMMAND", (children.sys.executable, str(path)))

    return use


FAILING = """
import sys
sys.stderr.write("\\x1b[1;31mconcat: 1 and 2\\x1b[m\\n")
def load():
    raise ValueError("two lengths")
load()
"""


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"


def test_a_process_that_an_ep_left_running_ends_with_the_measurement(script):
    script(SERVICE.format(end=""))
    begun = time.monotonic()

    answer = ask(timeout=30)

    assert time.monotonic() - begun < 20
    time.sleep(0.2)
    assert not is_running(answer["started"])


def test_a_process_that_does_not_end_is_ended_with_all_that_it_started(
    script, tmp_path
):
    note = tmp_path / "pid"
    end = f"open({str(note)!r}, 'w').write(str(started.pid)); started.wait()"
    script(SERVICE.format(end=end))

    with pytest.raises(
        Fail, match=r"running m\.onnx with epctx did not end within 3 s"
    ):
        ask(timeout=3)

    time.sleep(0.2)
    assert not is_running(int(note.read_text()))


def test_an_error_has_neither_colours_nor_frames_of_a_traceback(script):
    script(FAILING)

    with pytest.raises(Fail) as raised:
        ask(timeout=30)

    reason = raised.value.message.partition("said: ")[2]
    assert reason == "concat: 1 and 2 ValueError: two lengths"
