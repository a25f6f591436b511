"""One table of hooks: a hook is added by its specification, which is its row, and by
whoever calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from epctx_conformance.class_rules import find_mistakes
from registry.providers import ep

from epctx_core.errors import PluginError
from epctx_core.plugin.hookspecs import HOOKS, Hook, HookSpecs, hookspec

if TYPE_CHECKING:
    from epctx_core.plugin import Refusal

pytestmark = pytest.mark.internal


class OwnSpecs:
    """The specification of a hook of these tests' own."""

    @hookspec(in_runs=True)
    def prefer(self, ep: str, nodes: int, tag: str) -> Sequence[Refusal]:
        """Say which nodes the EP would rather not have."""
        raise NotImplementedError


@pytest.fixture
def own_hook(monkeypatch):
    monkeypatch.setitem(HOOKS, "prefer", Hook.of(OwnSpecs.prefer))
    monkeypatch.setattr(HookSpecs, "prefer", OwnSpecs.prefer, raising=False)


def test_a_new_hook_is_called_and_checked_by_its_row(own_hook, session):
    instances = session(
        ep("A", prefer=lambda self, tag: () if tag == "none" else [tag])
    )

    assert instances.implements("A", "prefer")
    assert instances.call("A", "prefer", nodes=1, tag="none") == []
    with pytest.raises(
        PluginError,
        match="broke the contract in prefer: it gave a str instead of a Refusal",
    ):
        instances.call("A", "prefer", nodes=1, tag="t")


def test_a_new_hook_is_traced_by_its_row(own_hook, session, monkeypatch, capsys):
    monkeypatch.setenv("EPCTX_TRACE", "1")
    session(ep("A", prefer=lambda self: [])).call("A", "prefer", nodes=2, tag="t")

    assert "A.prefer(nodes=2, tag='t') -> []" in capsys.readouterr().err


def test_implementations_of_a_new_hook_are_checked_by_its_row(own_hook):
    [(mistake, hint)] = find_mistakes(ep("A", prefer=lambda self, tags: []))

    assert "takes 'tags', which the hook does not give" in mistake
    assert "Arguments of prefer: ep, nodes, tag" in hint
