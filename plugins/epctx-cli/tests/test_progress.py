"""The line of progress of a stage."""

from __future__ import annotations

import math
import re
import time

from epctx_cli.progress import Progress


def test_the_time_left_is_estimated_from_what_this_stage_did(capfd):
    """The conformance kit counts on from group to group, and each is a stage."""
    progress = Progress(None)

    progress("second group", 40, 50)
    assert "left" not in progress.compose(80)
    time.sleep(0.2)
    progress("second group", 41, 50)
    line = progress.compose(80)

    assert re.search(r"41 of 50, about [2-9] s left", line)
    assert capfd.readouterr() == ("", "")


def test_a_line_stays_within_its_width_whatever_an_ep_says():
    progress = Progress(None)

    for done, total in ((-100, 10), (50, 10), (5, -3)):
        progress("compile", done, total)

        assert len(re.sub(r"\x1b\[[0-9;]*m", "", progress.compose(60))) <= 60


def test_only_what_is_written_is_counted_in_bytes():
    progress = Progress(None)

    progress("tune", 5, 0)

    assert "bytes" not in progress.compose(80)


def test_an_estimate_of_the_caller_replaces_that_of_the_counts():
    progress = Progress(None)

    progress("compile", 8, 10, unit="tasks", seconds_left=math.inf)
    unknown = progress.compose(80)
    progress(
        "compile", 9, 10, unit="tasks", notes=["1 failed", "5 cached"], seconds_left=125
    )

    assert "left" not in unknown
    assert progress.compose(100).endswith(
        "9 of 10 tasks, about 2:05 min left, 1 failed, 5 cached"
    )
    assert progress.compose(61).endswith("9 of 10 tasks, about 2:05 min left, 1 failed")


def test_a_log_gets_whole_lines_without_colours(tmp_path, monkeypatch):
    monkeypatch.setattr("epctx_cli.progress._LINE_SECONDS", 0.05)

    with (tmp_path / "log").open("w+") as log:
        progress = Progress(log, "compiling", in_lines=True)
        with progress.shown():
            progress("compile", 9, 10, unit="tasks", notes=["1 failed"])
            time.sleep(0.3)
        lines = (tmp_path / "log").read_text().splitlines()

    assert len(lines) > 1
    assert set(lines) == {"0 s  compiling  9 of 10 tasks, 1 failed"}
