"""The time that an isolated EP has to end by itself, made short: who is ended when it
is over, and who is not.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from epctx_isolation import process
from support.faulty_eps import Faulty
from support.isolation import (
    is_alive,
    nothing_left,
    options_for,
    registry_of,
    source,
    wait_for,
)
from support.small_models import example

import epctx_core as epctx

pytestmark = pytest.mark.internal


def test_the_wish_to_cancel_loads_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.0)
    options = options_for(
        Faulty, isolate="all", provider_options={"fault": "slow", "hook": "run"}
    )
    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Faulty)
    ) as session:
        options.set_load_cancellation_flag(True)

        (result,) = session.run(None, {"x": example()})

        options.set_load_cancellation_flag(False)

    assert np.isfinite(result).all()


def test_an_ep_that_does_not_look_at_the_hosts_wish_to_stop_is_ended_after_a_while(
    tmp_path, temporary, monkeypatch
):
    note = tmp_path / "note"
    monkeypatch.setenv("EPCTX_TEST_NOTE", str(note))
    monkeypatch.setattr(process, "GRACE_SECONDS", 0.3)
    options = options_for(Faulty, provider_options={"fault": "leave-a-child"})
    compiler = epctx.ModelCompiler(
        options, source(tmp_path), registry=registry_of(Faulty)
    )

    def cancel():
        wait_for(note.exists)
        options.set_load_cancellation_flag(True)

    threading.Thread(target=cancel).start()

    with nothing_left(temporary), pytest.raises(epctx.ModelLoadCanceled):
        compiler.compile_to_file()

    _, grandchild = map(int, note.read_text().split())
    assert wait_for(lambda: not is_alive(grandchild)), (
        "what it started is ended with it"
    )
