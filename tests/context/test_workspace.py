"""Content and lifetime of an EP's workspace in a session without a share group."""

from __future__ import annotations

from typing import ClassVar

import pytest
from support.small_models import chain

from epctx_core import InferenceSession, Registry
from epctx_core.plugin import ExecutionProvider, hookimpl


class Keeping(ExecutionProvider):
    """Takes nothing, and shows its workspace."""

    name = "KeepingExecutionProvider"
    workspaces: ClassVar[list] = []

    def __init__(self, context):
        super().__init__(context)
        self.workspaces.append(context.workspace)

    @hookimpl
    def get_capability(self, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []


@pytest.fixture
def session():
    registry = Registry(entry_points=False)
    registry.register(Keeping)
    model = chain(["Relu"]).SerializeToString()
    with InferenceSession(
        model, providers=[Keeping.name], registry=registry
    ) as session:
        yield session


@pytest.fixture
def workspace(session):
    return Keeping.workspaces.pop()


def test_an_object_of_the_workspace_is_made_once(workspace):
    made = []

    def make():
        made.append(1)
        return object()

    first = workspace.get_or_create("device", make)

    assert workspace.get_or_create("device", make) is first
    assert len(made) == 1


def test_a_factory_may_use_the_workspace_itself(workspace):
    outer = workspace.get_or_create(
        "outer", lambda: ("outer", workspace.get_or_create("inner", lambda: "inner"))
    )

    assert outer == ("outer", "inner")


def test_a_factory_that_raises_leaves_nothing_behind(workspace):
    with pytest.raises(KeyError):
        workspace.get_or_create("k", lambda: {}["missing"])

    assert workspace.get_or_create("k", lambda: 5) == 5


def test_closing_closes_the_youngest_first_and_once(session, workspace):
    closed = []
    for name in ("a", "b"):
        workspace.get_or_create(name, lambda name=name: name, closed.append)
    workspace.get_or_create("c", lambda: "c")

    session.close()
    session.close()

    assert closed == ["b", "a"]


def test_an_object_whose_close_raises_keeps_no_other_from_being_closed(
    session, workspace, caplog
):
    closed = []

    def close(obj):
        closed.append(obj)
        if obj == "broken":
            raise OSError("the device is gone")

    for name in ("oldest", "broken", "youngest"):
        workspace.get_or_create(name, lambda name=name: name, close)
    session.close()

    assert closed == ["youngest", "broken", "oldest"]
    assert "the device is gone" in caplog.text


def test_a_graph_can_be_taken_once(workspace):
    workspace.put("g", 1)

    assert workspace.take("g") == 1
    assert workspace.take("g") is None
