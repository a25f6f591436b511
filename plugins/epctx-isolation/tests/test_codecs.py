"""Each hook that travels has codecs for its types."""

from __future__ import annotations

from epctx_isolation.codecs import ARGUMENTS, RESULTS

from epctx_core.ext import HOOKS


def test_each_type_of_a_hook_that_travels_has_a_codec_and_no_codec_is_for_nothing():
    travelling = [hook for hook in HOOKS.values() if hook.works_isolated]

    arguments = {
        kind
        for hook in travelling
        for name, kind in hook.arguments.items()
        if name != "ep"
    }
    assert arguments == set(ARGUMENTS)
    assert {hook.result for hook in travelling} == set(RESULTS)
