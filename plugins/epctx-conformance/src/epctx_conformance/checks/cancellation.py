"""Checks of the host's wish to stop: obeyed in time, as the error that it is, and without a trace.

The wish comes while the EP works: at the moment that one of its hooks is entered.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from epctx_conformance.table import CheckFailed, check
from epctx_core import InferenceSession, ModelCompiler
from epctx_core.errors import EpctxError, ModelLoadCanceled

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from epctx_conformance.scene import Scene
    from epctx_core import SessionOptions

SECONDS = 2.0
"""How long an EP may take to notice."""
_LOOK = "Call context.cancel.raise_if_requested() between units of work, and hand it to what works for long."


class _Stopped:
    """One attempt that was stopped.

    Args:
        scene: the EP, whose hooks set the flag when they are entered.
        hook: the hook in which the wish comes.
        attempt: makes the session or compiles, with these options and this scene's registry.
    """

    def __init__(
        self,
        scene: Scene,
        hook: str,
        attempt: Callable[[Scene, SessionOptions], object],
        *,
        before: bool = False,
    ) -> None:
        self.options = scene.session_options()
        if before:
            self.options.set_load_cancellation_flag(True)
        self.entered = self.left = 0.0
        self.error: BaseException | None = None

        def act(honest: Callable[..., Any], **_arguments: Any) -> Any:
            self.options.set_load_cancellation_flag(True)
            self.entered = time.monotonic()
            try:
                return honest()
            finally:
                self.left = time.monotonic()

        watched, self.watch = scene.observed(**{hook: act})
        with watched:
            try:
                attempt(watched, self.options)
            except BaseException as error:  # noqa: BLE001 - what it is is what is checked
                self.error = error

    @property
    def seconds(self) -> float:
        """How long the hook went on after the wish."""
        return self.left - self.entered


def _expect_stopped(stopped: _Stopped, what: str, *, finished: bool = False) -> None:
    """Raise CheckFailed unless it ended in ModelLoadCanceled, in time; `finished` allows that it ended well."""
    if stopped.seconds > SECONDS:
        raise CheckFailed(
            f"{what} went on for {stopped.seconds:.1f} s after the host wished to stop.", hint=_LOOK
        )
    if isinstance(stopped.error, ModelLoadCanceled) or (finished and stopped.error is None):
        return
    if stopped.error is None:
        raise CheckFailed(f"{what} went on to its end though the host had wished to stop.", hint=_LOOK)
    said = stopped.error.message if isinstance(stopped.error, EpctxError) else repr(stopped.error)
    raise CheckFailed(
        f"{what} ended in {type(stopped.error).__name__} instead of ModelLoadCanceled: {said}",
        hint="Let ModelLoadCanceled pass; it is no fault.",
    )


def _compiling(model: bytes) -> Callable[[Scene, SessionOptions], object]:
    def attempt(scene: Scene, options: SessionOptions) -> object:
        options.add_session_config_entry("ep.context_embed_mode", "1")
        return ModelCompiler(options, model, registry=scene.registry).compile_to_bytes()

    return attempt


def _opening(model: Path | bytes) -> Callable[[Scene, SessionOptions], object]:
    def attempt(scene: Scene, options: SessionOptions) -> object:
        with closing(InferenceSession(model, options, registry=scene.registry)) as session:
            return session

    return attempt


@check("cancellation", "a wish to stop that came before a compile is obeyed", needs=["partitions"])
def _before_compile(scene: Scene) -> None:
    _expect_stopped(_Stopped(scene, "compile", _opening(scene.network.data), before=True), "a session")


@check("cancellation", "a wish to stop that came before a load is obeyed", needs=["export"])
def _before_load(scene: Scene) -> None:
    path = scene.compile(scene.network).path
    _expect_stopped(_Stopped(scene, "load_context", _opening(path), before=True), "a load")


@check("cancellation", "a session that is being compiled stops in time", needs=["partitions"])
def _while_compiling(scene: Scene) -> None:
    _expect_stopped(_Stopped(scene, "compile", _opening(scene.network.data)), "`compile`", finished=True)


@check("cancellation", "an export stops in time", needs=["partitions", "export"])
def _while_exporting(scene: Scene) -> None:
    _expect_stopped(
        _Stopped(scene, "compile", _compiling(scene.network.data)), "`compile` under EXPORT", finished=True
    )


@check("cancellation", "writing payloads stops in time", needs=["export"])
def _while_writing(scene: Scene) -> None:
    _expect_stopped(
        _Stopped(scene, "get_ep_context_nodes", _compiling(scene.network.data)),
        "`get_ep_context_nodes`",
        finished=True,
    )


@check("cancellation", "a load stops in time", needs=["export"])
def _while_loading(scene: Scene) -> None:
    path = scene.compile(scene.network).path
    _expect_stopped(_Stopped(scene, "load_context", _opening(path)), "`load_context`", finished=True)


@check("cancellation", "a look at what can be claimed stops in time")
def _while_claiming(scene: Scene) -> None:
    _expect_stopped(
        _Stopped(scene, "get_capability", _opening(scene.network.data)), "`get_capability`", finished=True
    )


@check("cancellation", "an instance that was stopped is shut down without an error", needs=["partitions"])
def _shut_down(scene: Scene) -> None:
    stopped = _Stopped(scene, "compile", _opening(scene.network.data))
    raised = [call.error for call in stopped.watch.of("shutdown") if call.error is not None]
    if raised:
        raise CheckFailed(
            f"shutdown raised after a compile was stopped: {raised[0]!r}.",
            hint="shutdown is called whatever was done before; release what is there and no more.",
        )


@check("cancellation", "what was stopped can be done again", needs=["partitions"])
def _again(scene: Scene) -> None:
    model = scene.network
    _Stopped(scene, "compile", _opening(model.data))
    try:
        scene.expect_run(model, "a model compiled after another was stopped")
    except EpctxError as error:
        raise CheckFailed(
            f"nothing can be compiled any more after one compile was stopped: {error.message}",
            hint="Keep nothing of what was stopped.",
        ) from error


@check("cancellation", "what was stopped leaves no file", needs=["partitions", "export"])
def _no_file(scene: Scene) -> None:
    folder = scene.folder()
    source = folder / "m.onnx"
    source.write_bytes(scene.network.data)

    def attempt(watched: Scene, options: SessionOptions) -> object:
        return ModelCompiler(options, source, registry=watched.registry).compile_to_file()

    stopped = _Stopped(scene, "compile", attempt)
    left = sorted(path.name for path in folder.iterdir() if path != source)
    if stopped.error is not None and left:
        raise CheckFailed(
            f"a compile that was stopped left {', '.join(left)}.", hint="Write only by the writer."
        )
