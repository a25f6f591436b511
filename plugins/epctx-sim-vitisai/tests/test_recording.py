"""Payloads that are kept: what was recorded is what is written, and its size was known
before.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from epctx_sim_sdk.container import Weight
from epctx_sim_vitisai.cache import StoredTensor
from epctx_sim_vitisai.recording import Recording
from hypothesis import given
from hypothesis import strategies as st
from support.written_payload import WrittenPayload

pytestmark = pytest.mark.internal


def tensor(content):
    digest = hashlib.sha256(content).hexdigest()
    weight = Weight(
        offset=0, length=len(content), elem_type=2, shape=(len(content),), digest=digest
    )
    return StoredTensor("w", np.frombuffer(content, np.uint8), weight)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.binary(max_size=50)),
        st.tuples(st.just("align"), st.sampled_from([1, 64, 4096])),
        st.tuples(
            st.just("write_tensor"), st.binary(min_size=1, max_size=3).map(tensor)
        ),
    ),
    max_size=12,
)


def nothing():
    """Called before each piece of a recording."""


@given(STEPS)
def test_a_recording_gives_what_would_have_been_written(steps):
    direct, replayed, recording = WrittenPayload(), WrittenPayload(), Recording()

    offsets = [
        (getattr(direct, name)(value), getattr(recording, name)(value))
        for name, value in steps
    ]
    size_before = recording.size
    recording.replay(replayed, nothing)

    assert all(one == other for one, other in offsets)
    assert direct.content == replayed.content == recording.content(nothing)
    assert size_before == len(direct.content)


def test_files_are_taken_whole(tmp_path):
    (tmp_path / "tool.out").write_bytes(b"abc")
    recording = Recording()
    recording.write(b"12")

    assert recording.add_file(tmp_path / "tool.out") == 2
    assert recording.content(nothing) == b"12abc"
