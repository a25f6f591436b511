"""Life of an instance: for each purpose, through failures and cancellation, until its
shutdown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.contained import Cases, try_cases
from epctx_conformance.table import CheckFailed, CheckFunction, Skipped, check
from epctx_core import InferenceSession, ModelCompiler, RunOptions
from epctx_core.errors import EpctxError, InvalidArgument, ModelLoadCanceled
from epctx_core.ext import implemented_hooks
from epctx_core.plugin import Availability, CompiledPartition, Purpose

if TYPE_CHECKING:
    from collections.abc import Mapping

    from epctx_conformance.harness import Harness
    from epctx_conformance.observing import Watch
    from epctx_core import SessionOptions
    from epctx_core.plugin import ExecutionProvider

NEEDS = ("partitions", "export")


def require_hooks(harness: Harness, *hooks: str) -> list[str]:
    """Return those of the hooks that the EP has; raise Skipped if it has none of
    them.
    """
    implemented = [
        hook for hook in hooks if hook in implemented_hooks(harness.provider)
    ]
    if not implemented:
        raise Skipped(f"the EP has no {' or '.join(hooks)} hook")
    return implemented


# --- purposes -------------------------------------------------------------------------


def without_device(provider: type[ExecutionProvider]) -> type[ExecutionProvider]:
    """Return the EP on a machine that has no device: it is available for EXPORT
    alone.
    """

    def availability(_cls: type[ExecutionProvider], purpose: Purpose) -> Availability:
        return Availability(
            purpose is Purpose.EXPORT, reason="the conformance kit took the device away"
        )

    return type(
        provider.__name__, (provider,), {"availability": classmethod(availability)}
    )


@check("export", "it compiles ahead of time without a device", needs=NEEDS)
def check_without_device(harness: Harness) -> None:
    """Available for EXPORT alone; the context model runs where there is a device."""
    path = harness.like(provider=without_device(harness.provider)).compile(
        harness.network
    )
    harness.expect_run(harness.network, "compiled without a device", path)


@check("export", "it reads its context model back without a device", needs=NEEDS)
def check_read_back(harness: Harness) -> None:
    """`loads_without_device`: an instance that compiled nothing loads it before it is
    published.
    """
    if not harness.provider.loads_without_device:
        raise Skipped("the EP does not declare loads_without_device")
    other, watch = harness.like(provider=without_device(harness.provider)).observed()
    other.compile(harness.network)
    readers = {id(call.instance) for call in watch.of("load_context")}
    if not readers or readers & {id(call.instance) for call in watch.of("compile")}:
        raise CheckFailed(
            "no new instance read the context model back.",
            hint="Load in load_context alone, without `compile`.",
        )


# --- shutdown -------------------------------------------------------------------------


class _PlannedError(Exception):
    """Error that the kit raises instead of an EP's hook."""


def _fail(_honest: Any, **_arguments: Any) -> Any:
    raise _PlannedError("raised by the conformance kit instead of the EP")


def _fail_afterwards(honest: Any, **_arguments: Any) -> Any:
    honest()
    raise _PlannedError("raised by the conformance kit after the EP")


def expect_shutdown(watch: Watch, what: str) -> None:
    """Raise CheckFailed unless each instance was shut down once and raised nothing
    there.
    """
    for instance in watch.instances:
        ends = [call for call in watch.of("shutdown") if call.instance is instance]
        for call in ends:
            if call.error is not None:
                raise CheckFailed(
                    f"shutdown {what} raised {type(call.error).__name__}: {call.error}",
                    hint=(
                        "shutdown is called whatever was done before; release what is "
                        "there and no more."
                    ),
                )
        if len(ends) != 1:
            raise CheckFailed(f"shutdown {what} was called {len(ends)} times.")


_ENDS: tuple[tuple[str, str, str, dict[str, Any], tuple[str, ...]], ...] = (
    # Made for a model and shut down before it was asked to compile.
    (
        "shutdown ends an instance that did nothing",
        "of an instance that compiled nothing",
        "explain",
        {},
        (),
    ),
    # Compiled, run, closed.
    ("shutdown ends a session", "after a session", "run", {}, ()),
    # Nothing was ever run.
    ("shutdown ends an ahead-of-time compile", "after a compile", "compile", {}, NEEDS),
    # Another part of the host failed before the EP's compile began.
    (
        "shutdown follows a compile that failed at once",
        "after a failed compile",
        "run",
        {"compile": _fail},
        ("partitions",),
    ),
    # The EP compiled, and its results never reached the host.
    (
        "shutdown follows a compile that failed at its end",
        "after a failed compile",
        "run",
        {"compile": _fail_afterwards},
        ("partitions",),
    ),
    # Writing failed, such as on a full disk.
    (
        "shutdown follows a description that failed",
        "after failed writing",
        "compile",
        {"get_ep_context_nodes": _fail_afterwards},
        NEEDS,
    ),
    # Nothing was ever compiled by this instance.
    ("shutdown ends a load", "after a load", "load", {}, NEEDS),
    # The EP loaded, and its results never reached the host.
    (
        "shutdown follows a load that failed",
        "after a failed load",
        "load",
        {"load_context": _fail_afterwards},
        NEEDS,
    ),
)
"""Title, the end in messages, the work, functions called instead of hooks, and the
abilities needed.
"""


def _make_ending_check(what: str, work: str, acts: Mapping[str, Any]) -> CheckFunction:
    def function(harness: Harness) -> None:
        require_hooks(harness, "shutdown")
        model = harness.network
        source = harness.compile(model) if work == "load" else model
        other, watch = harness.observed(**acts)
        try:
            if work == "explain":
                other.explain(model)
            elif work == "compile":
                other.compile(model)
            else:
                other.run(source, model.feeds())
        except EpctxError as error:
            if not isinstance(error.__cause__, _PlannedError):
                raise
        if not watch.instances:
            raise CheckFailed("no instance was made.")
        expect_shutdown(watch, what)

    return function


for _title, _what, _work, _acts, _needs in _ENDS:
    check("export", _title, needs=_needs)(_make_ending_check(_what, _work, _acts))


@check("export", "its compiled partitions close without an error")
def check_close(harness: Harness) -> None:
    """Each `CompiledPartition.close`, before shutdown; the core would only log what it
    raises.
    """
    raised: list[BaseException] = []
    # What several results have in common stays common to them: the core closes it once,
    # after the last.
    recording: dict[Callable[[], None] | None, Callable[[], None] | None] = {None: None}

    def record(honest: Any, **_arguments: Any) -> list[CompiledPartition]:
        results = honest()
        for close in (made.close for made in results):
            if close not in recording:
                recording[close] = _record_errors(close, raised)
        return [
            CompiledPartition(made.run, close=recording[made.close]) for made in results
        ]

    other, _ = harness.observed(compile=record, load_context=record)
    other.run(harness.network, harness.network.feeds())
    if harness.requirements.partitions and harness.requirements.export:
        other.run(other.compile(harness.network), harness.network.feeds())
    if raised:
        raise CheckFailed(
            f"closing a compiled partition raised {type(raised[0]).__name__}: "
            f"{raised[0]}",
            hint=(
                "The core closes what several results share once if they have one "
                "`close`, such as runtime.close."
            ),
        )


def _record_errors(
    close: Callable[[], None], raised: list[BaseException]
) -> Callable[[], None]:
    def closing() -> None:
        try:
            close()
        except BaseException as error:
            raised.append(error)
            raise

    return closing


# --- the other optional hooks ---------------------------------------------------------


@check("export", "its run hooks are called around each run and raise nothing")
def check_run_hooks(harness: Harness) -> None:
    """Start and end, with the tag of the run."""
    hooks = require_hooks(harness, "on_run_start", "on_run_end")
    other, watch = harness.observed()
    with other.session(harness.network) as session:
        for tag in ("first", ""):
            options = RunOptions()
            options.tag = tag
            session.run(None, harness.network.feeds(), options)
    for hook in hooks:
        tags = [call.arguments["tag"] for call in watch.of(hook)]
        if tags != ["first", ""]:
            raise CheckFailed(f"{hook} got the tags {tags}.")


@check("export", "it allocates memory as requested")
def check_allocate(harness: Harness) -> None:
    """Writable, C-contiguous, of the type and shape asked for, and not the same memory
    twice.
    """
    require_hooks(harness, "allocate")
    other, watch = harness.observed()
    with other.session(harness.network):
        instance = watch.instances[0]
        allocate = getattr(
            instance, implemented_hooks(type(instance))["allocate"].attribute
        )
        for shape in ((2, 3), (), (0, 4), (1024,)):
            dtype = np.dtype(np.float32)
            first, second = (
                allocate(harness.provider.name, shape, dtype) for _ in range(2)
            )
            if (
                not isinstance(first, np.ndarray)
                or first.shape != shape
                or first.dtype != dtype
            ):
                raise CheckFailed(
                    f"allocate({shape}, float32) gave {type(first).__name__} "
                    f"{first!r:.80}."
                )
            if not (first.flags.c_contiguous and first.flags.writeable):
                raise CheckFailed(
                    f"allocate({shape}, float32) gave memory that is not C-contiguous "
                    "and writable."
                )
            if first.size and np.shares_memory(first, second):
                raise CheckFailed("allocate gave the same memory twice.")


@check("export", "its dynamic options may be set in a session")
def check_dynamic_options(harness: Harness) -> None:
    """Each declared one, to its default and to each of its choices."""
    require_hooks(harness, "set_dynamic_options")
    declared = harness.provider.dynamic_options
    if not declared:
        raise Skipped("the EP declares no dynamic options")
    with harness.session(harness.network) as session:
        for option in declared:
            for value in option.choices or (option.default,):
                text = str(int(value)) if option.type is bool else str(value)
                session.set_ep_dynamic_options({option.name: text})
        harness.expect_run(
            harness.network, "after its dynamic options were set", session
        )


_DECLARE = (
    "Declare dynamic_options, or raise ValueError for a name or a value that the EP "
    "does not know."
)


@check("export", "it refuses unknown dynamic options")
def check_unknown_dynamic_option(harness: Harness) -> None:
    """By name, so that a host's typo shows; and no value of one that it knows ends the
    process.
    """
    require_hooks(harness, "set_dynamic_options")
    model = harness.folder() / "m.onnx"
    model.write_bytes(harness.network.data)
    try_cases(harness, wrong_dynamic_options, {"path": str(model)}, of_payloads=False)


def wrong_dynamic_options(harness: Harness, path: str) -> Cases:
    """Yield an unknown dynamic option, and for each declared text one that it cannot
    know.
    """
    texts = [
        option.name for option in harness.provider.dynamic_options if option.type is str
    ]
    with harness.session(Path(path)) as session:
        for name in ("ep.dynamic.no_such_option", *texts):

            def give(name: str = name) -> None:
                with suppress(InvalidArgument):
                    session.set_ep_dynamic_options({name: "no such value"})
                    if name not in texts:
                        raise CheckFailed(
                            f"it took the dynamic option {name!r}.", hint=_DECLARE
                        )

            yield f"the dynamic option {name!r} with a value that nobody knows", give


# --- cancellation ---------------------------------------------------------------------


SECONDS = 2.0
"""Seconds within which an EP has to stop."""
Attempt = Callable[["Harness", "SessionOptions"], object]
"""Opens a session or compiles, with a harness and its options."""


class _Cancelled:
    """Attempt that the host cancels at the moment that a hook is entered.

    Args:
        harness: of the EP.
        hook: the hook.
        attempt: the cancelled work.
        before: True to cancel it before it begins.

    Attributes:
        error: of the attempt, or None.
        seconds: from the cancellation to the end of the hook.
    """

    def __init__(
        self, harness: Harness, hook: str, attempt: Attempt, *, before: bool = False
    ) -> None:
        options = harness.session_options()
        if before:
            options.set_load_cancellation_flag(True)
        self.seconds = 0.0
        self.error: BaseException | None = None

        def cancel(honest: Callable[..., Any], **_arguments: Any) -> Any:
            options.set_load_cancellation_flag(True)
            entered = time.monotonic()
            try:
                return honest()
            finally:
                self.seconds = time.monotonic() - entered

        other, self.watch = harness.observed(**{hook: cancel})
        try:
            attempt(other, options)
        except BaseException as error:  # noqa: BLE001 - any error is what is checked
            self.error = error


def _expect_cancelled(cancelled: _Cancelled, what: str, *, finished: bool) -> None:
    """Raise CheckFailed unless it ended in ModelLoadCanceled, in time; `finished`
    allows that it ended well.
    """
    look = (
        "Call context.cancel.raise_if_requested() between units of work, and hand it "
        "to what works for long."
    )
    if cancelled.seconds > SECONDS:
        raise CheckFailed(
            f"{what} went on for {cancelled.seconds:.1f} s after the host cancelled "
            "it.",
            hint=look,
        )
    if cancelled.error is None:
        if not finished:
            raise CheckFailed(
                f"{what} went on to its end though the host had cancelled it.",
                hint=look,
            )
    elif isinstance(cancelled.error, CheckFailed):
        raise cancelled.error
    elif not isinstance(cancelled.error, ModelLoadCanceled):
        message = getattr(cancelled.error, "message", repr(cancelled.error))
        raise CheckFailed(
            f"{what} ended in {type(cancelled.error).__name__} instead of "
            f"ModelLoadCanceled: {message}",
            hint="Do not catch ModelLoadCanceled.",
        )
    if cancelled.watch.of("shutdown"):
        expect_shutdown(cancelled.watch, "after a cancellation")


def _make_compile(harness: Harness) -> Attempt:
    """Return a compile to a file, which leaves nothing if it fails: neither a context
    model nor a binary.
    """
    source = harness.folder() / "m.onnx"
    source.write_bytes(harness.network.data)

    def attempt(other: Harness, options: SessionOptions) -> object:
        try:
            return ModelCompiler(
                options, source, registry=other.registry
            ).compile_to_file()
        except EpctxError as error:
            left = sorted(
                path.name for path in source.parent.iterdir() if path != source
            )
            if left:
                raise CheckFailed(
                    f"a compile that was cancelled left {', '.join(left)}.",
                    hint="Write only with the writer.",
                ) from error
            raise

    return attempt


def _make_opening(model: Path | bytes) -> Attempt:
    return lambda harness, options: InferenceSession(
        model, options, registry=harness.registry
    ).close()


_CANCELLATIONS: tuple[
    tuple[str, str, str, bool, Callable[[Harness], Attempt], tuple[str, ...]], ...
] = (
    (
        "a compile stops if it was cancelled before",
        "a session",
        "compile",
        True,
        lambda harness: _make_opening(harness.network.data),
        ("partitions",),
    ),
    (
        "a load stops if it was cancelled before",
        "a load",
        "load_context",
        True,
        lambda harness: _make_opening(harness.compile(harness.network)),
        ("export",),
    ),
    (
        "a compile stops in time",
        "`compile`",
        "compile",
        False,
        lambda harness: _make_opening(harness.network.data),
        ("partitions",),
    ),
    (
        "an export stops in time and leaves no file",
        "`compile` under EXPORT",
        "compile",
        False,
        _make_compile,
        NEEDS,
    ),
    (
        "writing payloads stops in time",
        "`get_ep_context_nodes`",
        "get_ep_context_nodes",
        False,
        _make_compile,
        ("export",),
    ),
    (
        "a load stops in time",
        "`load_context`",
        "load_context",
        False,
        lambda harness: _make_opening(harness.compile(harness.network)),
        ("export",),
    ),
    (
        "claiming stops in time",
        "`get_capability`",
        "get_capability",
        False,
        lambda harness: _make_opening(harness.network.data),
        (),
    ),
)
"""Title, name in messages, hook, whether the attempt is cancelled before it begins, the
attempt, abilities needed.
"""


def _make_cancellation_check(
    what: str, hook: str, before: bool, attempt: Callable[[Harness], Attempt]
) -> CheckFunction:
    def function(harness: Harness) -> None:
        cancelled = _Cancelled(harness, hook, attempt(harness), before=before)
        _expect_cancelled(cancelled, what, finished=not before)

    return function


for _title, _what, _hook, _before, _attempt, _needs in _CANCELLATIONS:
    check("cancellation", _title, needs=_needs)(
        _make_cancellation_check(_what, _hook, _before, _attempt)
    )


@check("cancellation", "it compiles after a cancellation", needs=["partitions"])
def check_again(harness: Harness) -> None:
    """A model compiled after the compile of another was cancelled."""
    _Cancelled(harness, "compile", _make_opening(harness.network.data))
    try:
        harness.expect_run(
            harness.network, "a model compiled after another was cancelled"
        )
    except EpctxError as error:
        raise CheckFailed(
            f"no compile works after one was cancelled: {error.message}",
            hint="Keep nothing of a cancelled compile.",
        ) from error
