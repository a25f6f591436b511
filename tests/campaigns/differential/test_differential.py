"""Differences from onnxruntime are those of the document; `make differential` shows the
outcomes.
"""

from __future__ import annotations

import pytest
from differential.comparing import BEHAVIOURS, compare
from differential.harness import Outcome, agree

from epctx_core.errors import Fail, InvalidArgument

KNOWN_ENTRIES = range(1, 138)


@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_a_behaviour_is_onnxruntimes_or_a_listed_difference(behaviour, tmp_path):
    done = compare(behaviour, tmp_path / "compared")

    assert done.fault == "", (
        f"onnxruntime: {done.theirs.shown()}; epctx: {done.ours.shown()}"
    )


def test_there_are_enough_behaviours_and_none_twice():
    assert len(BEHAVIOURS) >= 100
    assert len({behaviour.name for behaviour in BEHAVIOURS}) == len(BEHAVIOURS)
    assert all(
        entry in KNOWN_ENTRIES
        for behaviour in BEHAVIOURS
        for entry in behaviour.entries
    )


def test_an_unlisted_difference_and_a_stale_row_are_noticed():
    same, other = (Outcome(value=value, error=None, files=()) for value in (1, 2))

    assert agree(same, same)
    assert not agree(same, other)
    assert not agree(same, Outcome(value=1, error=None, files=("m.bin",)))
    assert agree(
        *(
            Outcome(value=None, error=error, files=())
            for error in (ValueError(), InvalidArgument("x"))
        )
    )
    assert not agree(
        *(
            Outcome(value=None, error=error, files=())
            for error in (TypeError(), Fail("x"))
        )
    )
