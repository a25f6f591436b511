"""The processes in which plugins are tried: ended with all that a plugin started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from epctx_cli.plugin_trial import try_all

from epctx_core.registry import Registry

pytestmark = pytest.mark.internal


@pytest.mark.parametrize(
    ("then", "timeout", "reason"),
    [
        ("child.wait()", 3.0, "it took longer than 3 s while it was tried"),
        (
            "import os; os._exit(7)",
            60.0,
            "its process ended with exit code 7 while it was tried",
        ),
    ],
    ids=["hangs", "ends"],
)
def test_what_a_plugin_started_is_ended_with_it(
    site, monkeypatch, tmp_path, then, timeout, reason
):
    note = tmp_path / "pid"
    code = (
        "import pathlib, subprocess, sys\nchild = subprocess.Popen([sys.executable, "
        "'-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n{then}\n"
    )
    monkeypatch.syspath_prepend(
        str(site("epctx-slow", "SlowExecutionProvider", code=code))
    )
    records = [r for r in Registry().records() if r.name == "SlowExecutionProvider"]

    (slow,) = try_all(records, log=lambda text: None, timeout=timeout)

    assert slow.record.state.value == "broken"
    assert slow.record.reason == reason
    assert is_gone(int(note.read_text()))


@pytest.mark.parametrize(
    "code", ["", "import time; time.sleep(600)"], ids=["ends", "hangs"]
)
def test_a_group_of_processes_is_ended_while_its_number_is_still_the_plugins(
    site, monkeypatch, code
):
    kept, end_group = [], os.killpg

    def killpg(number, what):
        kept.append(
            Path(f"/proc/{number}").exists()
        )  # a number that was waited for may be anybody's
        end_group(number, what)

    monkeypatch.setattr(os, "killpg", killpg)
    monkeypatch.syspath_prepend(
        str(site("epctx-any", "AnyExecutionProvider", code=code))
    )
    records = [r for r in Registry().records() if r.name == "AnyExecutionProvider"]

    try_all(records, log=lambda text: None, timeout=3.0)

    assert kept == [True]


def is_gone(process):
    """Whether a process ended; one that nobody has waited for yet counts as ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if (
                Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                == "Z"
            ):
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False
