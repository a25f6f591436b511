"""The line of progress of a stage."""

from __future__ import annotations

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
