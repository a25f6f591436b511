"""Whether an EP of this machine runs a compiled model; `ep_queries` asks the same without a session.

The text under `ep_compatibility_info.<EP type>` in the model's metadata is the EP's own; only that EP judges it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.context.metadata import all_compatibility_info
from epctx_core.errors import Fail, InvalidGraph
from epctx_core.plugin import Compatibility
from epctx_core.registry.guard import ask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import ModelProto

    from epctx_core.sessions.providers import ProviderChoice

UNSUPPORTED_HINT = (
    "Compile the source model again with the EP that is installed here, or give the options that "
    "describe the device it was compiled for."
)


def judge(choice: ProviderChoice, info: str) -> Compatibility:
    """Return an EP's verdict on what it once wrote.

    Raises:
        PluginError: it raised, or gave something else.
    """
    verdict: Compatibility = ask(choice.record, choice.cls, "validate_compatibility", info, choice.options)
    return verdict


def accept(choice: ProviderChoice, info: str) -> Compatibility:
    """Return an EP's verdict on what it once wrote, unless it cannot run that any more.

    Raises:
        InvalidGraph: it cannot.
        PluginError: as `judge`.
    """
    verdict = judge(choice, info)
    if verdict == Compatibility.EP_UNSUPPORTED:
        raise InvalidGraph(
            f"{choice.name} does not support this compiled model: the model was compiled for {info!r}.",
            ep=choice.name,
            hint=UNSUPPORTED_HINT,
        )
    return verdict


def suboptimal(choice: ProviderChoice, info: str) -> Fail:
    """Return the error for a model that an EP would rather compile again."""
    return Fail(
        f"{choice.name} runs this compiled model less well than a new one: the model was compiled for {info!r}.",
        ep=choice.name,
        hint="Compile the source model again.",
    )


def check_compatibility(
    model: ModelProto, choices: Iterable[ProviderChoice], *, fail_on_suboptimal: bool
) -> list[str]:
    """Ask each EP of a session to judge what it once wrote about the model; return warnings.

    Called before any EP instance exists.

    Raises:
        InvalidGraph: an EP says that it cannot run the model any more.
        Fail: an EP would rather compile again, and the host wants that to be an error.
        PluginError: an EP raised, or gave something else than a verdict.
    """
    infos = all_compatibility_info(model)
    warnings = []
    said = ((choice, info) for choice in choices for info in infos.get(choice.name, ()))
    for choice, info in said:
        if accept(choice, info) == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
            error = suboptimal(choice, info)
            if fail_on_suboptimal:
                raise error
            warnings.append(error.message)
    return warnings
