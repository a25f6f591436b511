"""What an EP answers when it is asked for its claims, as a check looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epctx_conformance.table import CheckFailed
from epctx_core.errors import EpctxError
from epctx_core.plugin import ComputeCapability, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.observing import Call
    from epctx_conformance.scene import Scene


def asked(scene: Scene, model: SmallModel, act: Any = None) -> list[Call]:
    """Return the calls of get_capability that one assignment makes; an error is one of the EP's."""
    watched, watch = scene.observed(**({} if act is None else {"get_capability": act}))
    try:
        watched.explain(model)
    except EpctxError as error:
        raise CheckFailed(f"of the model {model.name}: {error.message}", hint=error.hint or "") from error
    return watch.of("get_capability")


def answer_of(items: Sequence[Any]) -> list[Any]:
    """Return an answer in a form that can be compared: places of nodes instead of nodes."""
    found: list[Any] = []
    for item in items:
        places = sorted(getattr(node, "index", node) for node in item.nodes)
        if isinstance(item, Refusal):
            found.append(("refusal", item.reason, places))
        else:
            found.append(("claim", item.fuse, item.keep_initializers, item.exact, places))
    return sorted(found, key=repr)


def claimed_places(calls: Sequence[Call]) -> list[list[int]]:
    """Return, for each call, the places of the nodes that the EP takes."""
    return [
        sorted(
            node.index for item in call.result if isinstance(item, ComputeCapability) for node in item.nodes
        )
        for call in calls
    ]
