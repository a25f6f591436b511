"""The flag of one compile, and the host's behind it."""

from __future__ import annotations

import pytest

from epctx_core import ModelLoadCanceled
from epctx_core.options import CancellationFlag
from epctx_core.sessions.host import CompileCancellation

pytestmark = pytest.mark.internal


def test_a_compiles_own_flag_hears_of_the_hosts_and_never_changes_it():
    host = CancellationFlag()
    own = CompileCancellation(host)
    assert not own.requested
    assert not own.wait(0.01)

    own.set(True)

    assert own.requested
    assert own.wait(0)
    assert not host.requested
    with pytest.raises(ModelLoadCanceled):
        own.raise_if_requested()
    own.set(False)
    host.set(True)
    assert own.requested
