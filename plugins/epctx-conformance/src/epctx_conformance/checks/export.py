"""The life of an instance: for each purpose, through failures, until its shutdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core import RunOptions
from epctx_core.errors import EpctxError, InvalidArgument
from epctx_core.ext import implemented_hooks
from epctx_core.plugin import Availability, CompiledPartition, ProviderOption, Purpose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from epctx_conformance.observing import Watch
    from epctx_conformance.scene import Scene
    from epctx_core.plugin import ExecutionProvider

NEEDS = ("partitions", "export")


class _PlannedError(Exception):
    """Raised by the kit in an EP's place."""


def _fail(_honest: Any, **_given: Any) -> Any:
    raise _PlannedError("raised by the conformance kit in the EP's place")


def _fail_afterwards(honest: Any, **_given: Any) -> Any:
    honest()
    raise _PlannedError("raised by the conformance kit behind the EP")


def _needs_hook(scene: Scene, hook: str) -> None:
    if hook not in implemented_hooks(scene.provider):
        raise Skipped(f"the EP has no {hook} hook")


# --- export ---------------------------------------------------------------------------------------------


def without_device(provider: type[ExecutionProvider]) -> type[ExecutionProvider]:
    """Return the EP on a machine that has no device: it is available for EXPORT alone."""

    def availability(_cls: type[ExecutionProvider], purpose: Purpose) -> Availability:
        return Availability(purpose is Purpose.EXPORT, reason="the conformance kit took the device away")

    return type(provider.__name__, (provider,), {"availability": classmethod(availability)})


@check("export", "it compiles ahead of time where nothing can be run", needs=NEEDS)
def check_without_device(scene: Scene) -> None:
    """Available for EXPORT alone; what was compiled runs where there is a device."""
    compiled = scene.with_provider(without_device(scene.provider)).compile(scene.network)
    scene.expect_run(scene.network, "compiled without a device", compiled.path)


@check("export", "what it wrote reads back where nothing can be run", needs=NEEDS)
def check_read_back(scene: Scene) -> None:
    """`loads_without_device`: an instance that compiled nothing loads it before it is published."""
    if not scene.provider.loads_without_device:
        raise Skipped("the EP does not say that it loads without a device")
    watched, watch = scene.with_provider(without_device(scene.provider)).observed()
    watched.compile(scene.network)
    readers = {id(call.instance) for call in watch.of("load_context")}
    if not readers or readers & {id(call.instance) for call in watch.of("compile")}:
        raise CheckFailed("no instance of its own read back what was written.")


@check("export", "it makes an instance for each purpose")
def check_every_purpose(scene: Scene) -> None:
    """Made, asked for its claims and shut down."""
    purposes = [Purpose.RUN] + [Purpose.EXPORT, Purpose.LOAD] * scene.requirements.export
    for purpose in purposes:
        scene.explain(scene.network, purpose=purpose)


# --- shutdown -------------------------------------------------------------------------------------------


def _expect_quiet_end(watch: Watch, what: str) -> None:
    """Raise unless each instance was shut down once and raised nothing there."""
    for instance in watch.instances:
        ends = [call for call in watch.of("shutdown") if call.instance is instance]
        for call in ends:
            if call.error is not None:
                raise CheckFailed(
                    f"shutdown {what} raised {type(call.error).__name__}: {call.error}",
                    hint="shutdown releases what there is, whatever was done before; nothing may be missing there.",
                )
        if len(ends) != 1:
            raise CheckFailed(f"shutdown {what} was called {len(ends)} times.")


def _ended(scene: Scene, what: str, do: Callable[[Scene], object], **acts: Any) -> None:
    _needs_hook(scene, "shutdown")
    watched, watch = scene.observed(**acts)
    try:
        do(watched)
    except EpctxError as error:
        if not isinstance(error.__cause__, _PlannedError):
            raise
    if not watch.instances:
        raise CheckFailed("no instance was made.")
    _expect_quiet_end(watch, what)


_ENDS: tuple[tuple[str, str, Callable[[Scene], object], dict[str, Any], tuple[str, ...]], ...] = (
    # Made for a model and shut down before it was asked to compile.
    (
        "shutdown ends an instance that did nothing", "of an instance that compiled nothing",
        lambda watched: watched.explain(watched.network), {}, (),
    ),
    # Compiled, run, closed.
    (
        "shutdown ends a session", "after a session",
        lambda watched: watched.run(watched.network, watched.network.feeds()), {}, (),
    ),
    # Nothing was ever run.
    (
        "shutdown ends an ahead-of-time compile", "after a compile",
        lambda watched: watched.compile(watched.network), {}, NEEDS,
    ),
    # Another part of the host failed before the EP's compile began.
    (
        "shutdown follows a compile that failed at once", "after a failed compile",
        lambda watched: watched.session(watched.network).close(), {"compile": _fail}, ("partitions",),
    ),
    # The EP compiled, and what came of it never reached the host.
    (
        "shutdown follows a compile that failed at its end", "after a failed compile",
        lambda watched: watched.session(watched.network).close(), {"compile": _fail_afterwards}, ("partitions",),
    ),
    # Writing failed, such as on a full disk.
    (
        "shutdown follows a description that failed", "after failed writing",
        lambda watched: watched.compile(watched.network), {"get_ep_context_nodes": _fail_afterwards}, NEEDS,
    ),
)  # fmt: skip
"""Title, what shutdown follows, what is done, what hooks do instead, and what is needed."""


def _ending(what: str, do: Callable[[Scene], object], acts: Mapping[str, Any]) -> CheckFunction:
    return lambda scene: _ended(scene, what, do, **acts)


for _title, _what, _do, _acts, _needs in _ENDS:
    check("export", _title, needs=_needs)(_ending(_what, _do, _acts))


@check("export", "shutdown ends a load", needs=NEEDS)
def check_shutdown_load(scene: Scene) -> None:
    """Nothing was ever compiled by this instance."""
    path = scene.compile(scene.network).path
    _ended(scene, "after a load", lambda watched: watched.run(path, scene.network.feeds()))


@check("export", "shutdown follows a load that failed", needs=NEEDS)
def check_shutdown_failed_load(scene: Scene) -> None:
    """The EP loaded, and what came of it never reached the host."""
    path, acts = scene.compile(scene.network).path, {"load_context": _fail_afterwards}
    _ended(scene, "after a failed load", lambda watched: watched.session(path).close(), **acts)


@check("export", "what it compiled is closed without an error")
def check_close(scene: Scene) -> None:
    """Each `CompiledPartition.close`, before shutdown; the core would only log what it raises."""
    raised: list[BaseException] = []
    # What several results have in common stays common to them: the core closes it once, after the last.
    noted: dict[Callable[[], None] | None, Callable[[], None] | None] = {None: None}

    def noting(honest: Any, **_given: Any) -> list[CompiledPartition]:
        results = honest()
        for close in (made.close for made in results):
            if close not in noted:
                noted[close] = _noted(close, raised)
        return [CompiledPartition(made.run, close=noted[made.close]) for made in results]

    watched, _ = scene.observed(compile=noting, load_context=noting)
    watched.run(scene.network, scene.network.feeds())
    if scene.requirements.partitions and scene.requirements.export:
        watched.run(watched.compile(scene.network).path, scene.network.feeds())
    if raised:
        raise CheckFailed(
            f"closing a compiled partition raised {type(raised[0]).__name__}: {raised[0]}",
            hint="What several results share is closed once if they have one close, such as runtime.close.",
        )


def _noted(close: Callable[[], None], raised: list[BaseException]) -> Callable[[], None]:
    def closing() -> None:
        try:
            close()
        except BaseException as error:
            raised.append(error)
            raise

    return closing


@check("export", "one session's end is not another's", needs=("concurrency",))
def check_instances_apart(scene: Scene) -> None:
    """Two sessions of one model; the first is closed, the second runs."""
    model, feeds = scene.network, scene.network.feeds()
    with scene.session(model) as second:
        scene.run(model, feeds)
        scene.expect_run(model, "after another session was closed", second)


# --- the other optional hooks ---------------------------------------------------------------------------


@check("export", "its run hooks are called around each run and raise nothing")
def check_run_hooks(scene: Scene) -> None:
    """Start and end, with the tag of the run."""
    hooks = [hook for hook in ("on_run_start", "on_run_end") if hook in implemented_hooks(scene.provider)]
    if not hooks:
        raise Skipped("the EP has no run hooks")
    watched, watch = scene.observed()
    with watched.session(scene.network) as session:
        for tag in ("first", ""):
            options = RunOptions()
            options.tag = tag
            session.run(None, scene.network.feeds(), options)
    for hook in hooks:
        tags = [call.arguments["tag"] for call in watch.of(hook)]
        if tags != ["first", ""]:
            raise CheckFailed(f"{hook} got the tags {tags}.")


@check("export", "it allocates what it is asked for")
def check_allocate(scene: Scene) -> None:
    """Writable, C-contiguous, of the type and shape asked for, and not the same memory twice."""
    _needs_hook(scene, "allocate")
    watched, watch = scene.observed()
    with watched.session(scene.network):
        instance = watch.instances[0]
        allocate = getattr(instance, implemented_hooks(type(instance))["allocate"].attribute)
        for shape in ((2, 3), (), (0, 4), (1024,)):
            dtype = np.dtype(np.float32)
            first, second = (allocate(scene.provider.name, shape, dtype) for _ in range(2))
            if not isinstance(first, np.ndarray) or first.shape != shape or first.dtype != dtype:
                raise CheckFailed(f"allocate({shape}, float32) gave {type(first).__name__} {first!r:.80}.")
            if not (first.flags.c_contiguous and first.flags.writeable):
                raise CheckFailed(
                    f"allocate({shape}, float32) gave memory that is not C-contiguous and writable."
                )
            if first.size and np.shares_memory(first, second):
                raise CheckFailed("allocate gave the same memory twice.")


@check("export", "its dynamic options may be set while a session lives")
def check_dynamic_options(scene: Scene) -> None:
    """Each declared one, to its default and to each of its choices."""
    _needs_hook(scene, "set_dynamic_options")
    declared = scene.provider.dynamic_options
    if not declared:
        raise Skipped("the EP declares no dynamic options")
    model, feeds = scene.network, scene.network.feeds()
    with scene.session(model) as session:
        for option in declared:
            for value in option.choices or (option.default,):
                session.set_ep_dynamic_options({option.name: _text(option, value)})
        scene.expect_agreement(model, session.run(None, feeds), feeds, "after its dynamic options were set")


def _text(option: ProviderOption, value: Any) -> str:
    return str(int(value)) if option.type is bool else str(value)


@check("export", "a dynamic option that it does not have is refused")
def check_unknown_dynamic_option(scene: Scene) -> None:
    """By name, so that a host's typo shows."""
    _needs_hook(scene, "set_dynamic_options")
    with scene.session(scene.network) as session:
        try:
            session.set_ep_dynamic_options({"ep.dynamic.no_such_option": "1"})
        except InvalidArgument:
            return
    raise CheckFailed(
        "it took the dynamic option 'ep.dynamic.no_such_option'.",
        hint="Declare dynamic_options, or raise ValueError for a name that the EP does not know.",
    )
