"""`InferenceSession`: a model, ready to run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import getpid
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Self

from epctx_core.errors import InvalidArgument, RuntimeException
from epctx_core.options.choices import CPU_EP, Isolation
from epctx_core.options.strict import Strict
from epctx_core.plugin.extensions import run_with_options
from epctx_core.process import keep_forever
from epctx_core.registry import PluginRecord, Registry, default_registry
from epctx_core.sessions import host
from epctx_core.sessions.load import SessionState, load_session
from epctx_core.sessions.signature import (
    check_memory,
    make_feed_order,
    unknown_name_error,
)
from epctx_core.sessions.stages import Request

if TYPE_CHECKING:
    import numpy as np

    from epctx_core.graph.mapping import ModelInput
    from epctx_core.options import SessionOptions
    from epctx_core.options.run import RunOptions
    from epctx_core.sessions.assigned_nodes import OrtEpAssignedSubgraph
    from epctx_core.sessions.placement import Placement
    from epctx_core.sessions.routing import ProviderRequest
    from epctx_core.sessions.signature import ModelMetadata, NodeArg

_POLL_SECONDS = 0.001


class InferenceSession(Strict):
    """Runs a model: a plain one or a context model.

    Names and arguments as `onnxruntime.InferenceSession`.

    Args:
        path_or_bytes: the model.
        sess_options: session options; EPs may be given there (`add_provider`) or here.
        providers: EP names in order of priority, each with or without its options.
            None: the EPs of `sess_options`; without those, a context model finds its
            EPs by its nodes' sources and a plain model runs on the CPU EP. The CPU EP
            is always there, last.
        provider_options: options for `providers`, one mapping each.
        registry: the registry of EPs.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: the model is missing, is not a model,
            or is not valid.
        InvalidArgument: an option or EP that does not exist.
        NotImplementedByProvider: a node that no EP loads, or an operator that no engine
            has.
        PluginError, EPFail: an EP failed.

    Examples:
        >>> with InferenceSession("model_ctx.onnx") as session:
        ...     outputs = session.run(None, {"x": x})
    """

    def __init__(
        self,
        path_or_bytes: ModelInput,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | ProviderRequest] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
        *,
        registry: Registry = default_registry,
    ) -> None:
        self._process = getpid()
        model = host.check_model_argument(path_or_bytes)
        self._options, requested = host.read_request(
            sess_options, providers, provider_options
        )
        request = Request.from_options(model, self._options, registry, requested)
        state = open_session(request)
        self._state: SessionState | None = state
        self._inputs = state.inputs
        self._outputs = state.outputs
        self._indices = {output.name: i for i, output in enumerate(state.outputs)}
        self._defaults = state.defaults
        self._order = make_feed_order(state.inputs, state.defaults)

        # The threads of calls under way. append and remove are atomic, so that a run
        # takes no lock.
        self._running: deque[int] = deque()
        self._closed = False
        self._closing = threading.Lock()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
        *,
        outputs: Mapping[str, np.ndarray] | None = None,
    ) -> list[Any]:
        """Run the model; callable from many threads.

        Args:
            output_names: the requested outputs; None or an empty list for all, in the
                model's order.
            input_feed: name to array.
            run_options: `terminate` stops the run, see `RunOptions`.
            outputs: memory for outputs: name to an array of the output's type and
                shape, C-contiguous and writable. EPs and the engine write into it;
                where they cannot, the result is copied.

        Returns:
            One array an output; they are the caller's own. Those of `outputs` are the
            arrays given there.

        Raises:
            InvalidArgument: a wrong name, type or shape.
            RuntimeException: an EP or a kernel raised, the run was terminated, or the
                session is closed.
        """
        thread = get_ident()
        self._running.append(thread)
        try:
            state = self._state
            if state is None or self._closed or getpid() != self._process:
                raise self._over()
            chosen = self._find_indices(output_names) if output_names else None
            feeds = self._order(input_feed)
            memory = None if outputs is None else self._find_memory(outputs)
            if run_options is None:
                results = state.run(feeds, None, memory)
            else:
                from epctx_core.options.run import RunOptions

                host.check_class("run_options", run_options, RunOptions)
                results = run_with_options(state.run, feeds, run_options, memory)
            return results if chosen is None else [results[index] for index in chosen]
        finally:
            self._running.remove(thread)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], object],
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run the model in a thread of its own, and then call
        `callback(results, user_data, error)` there.

        Args:
            output_names, input_feed, run_options: as for `run`.
            callback: gets the outputs and "", or none and the error's text.
            user_data: handed to the callback.

        Raises:
            InvalidArgument: the callback is not a function, or the input feed is not a
                mapping.
            RuntimeException: the session is closed.
        """
        host.check_function("run_async", callback)
        if not isinstance(input_feed, Mapping):
            raise InvalidArgument(
                "input_feed must map names to arrays, not be of type "
                f"{type(input_feed).__name__}."
            )

        self._open()
        feeds = dict(input_feed)
        begun = threading.Event()

        def work() -> None:
            results = []
            error = ""
            # `close` waits for what was accepted, so the call counts from here on.
            self._running.append(get_ident())
            begun.set()
            try:
                results = self.run(output_names, feeds, run_options)
            except BaseException as raised:  # noqa: BLE001 - the callback gets every error
                error = str(raised) or type(raised).__name__
            finally:
                self._running.remove(get_ident())
            callback(results, user_data, error)

        threading.Thread(target=work, name="epctx-run-async").start()
        begun.wait()

    def _find_indices(self, names: Sequence[str]) -> list[int]:
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise InvalidArgument(
                f"output_names is a list of names, not {names!r:.80}.",
                hint="Give None for all outputs.",
            )
        indices = self._indices
        for name in names:
            if name not in indices:
                raise unknown_name_error("output", name, [*indices])
        return [indices[name] for name in names]

    def _find_memory(self, arrays: Mapping[str, Any]) -> list[np.ndarray | None]:
        """Return the memory that was given for each output, None for those without."""
        if not isinstance(arrays, Mapping):
            raise InvalidArgument(
                f"outputs must map names to arrays, not be a {type(arrays).__name__}.",
                hint="Write outputs={name: array}.",
            )
        self._find_indices([*arrays])
        memory = [arrays.get(output.name) for output in self._outputs]
        for output, array in zip(self._outputs, memory, strict=True):
            if array is not None:
                check_memory(output, array)
        return memory

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that must be given, in the model's order."""
        return [i for i in self._inputs if i.name not in self._defaults]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default in the model."""
        return [i for i in self._inputs if i.name in self._defaults]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in the model's order."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Return the names of the session's EPs in order of priority; the CPU EP is
        last.
        """
        return [*self._open().providers.choices, CPU_EP]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return each EP's options, defaults included, secret ones left out."""
        choices = self._open().providers.choices
        shown = {
            ep: {k: str(v) for k, v in c.public_options().items()}
            for ep, c in choices.items()
        }
        return {**shown, CPU_EP: {}}

    def get_provider_records(self) -> list[PluginRecord]:
        """Return the plugin records of the session's EPs, in order of priority."""
        return [choice.record for choice in self._open().providers.choices.values()]

    @property
    def engine(self) -> str:
        """The engine that runs what no EP takes, with its version, such as
        `onnxruntime 1.31.1`.
        """
        return self._open().engine.name

    def get_modelmeta(self) -> ModelMetadata:
        """Return the model's metadata."""
        return self._open().metadata

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with; changing them does not
        change the session.
        """
        return self._options

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of the session's EPs while it lives, such as
        `ep.dynamic.workload_type`.

        All are checked before any EP is given one.

        Raises:
            NotImplementedByProvider: no EP of the session takes dynamic options.
            InvalidArgument: no EP has such an option, or a value is not allowed.
            PluginError: an EP failed.
        """
        self._open().providers.set_dynamic_options(options)

    def placement(self) -> Placement:
        """Return the nodes and weights of each EP, and why EPs left nodes to the CPU
        EP; `print` shows it as tables.
        """
        return self._open().placement

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return the nodes that each EP compiled or loaded, then those of the CPU EP.

        Raises:
            InvalidArgument: the session option
                `session.record_ep_graph_assignment_info` was not 1.
        """
        assigned = self._open().assigned
        if assigned is None:
            raise InvalidArgument(
                "this session did not record which EP runs which node.",
                hint=(
                    "Set the session option 'session.record_ep_graph_assignment_info' "
                    "to 1 before it is made."
                ),
            )
        return list(assigned)

    def end_profiling(self) -> str:
        """Write the profile, which later runs are no part of; return the path of its
        file, empty if `SessionOptions.enable_profiling` was not set.

        Raises:
            Fail: the file cannot be written.
        """
        return self._open().providers.end_profiling()

    def close(self) -> None:
        """Wait for running calls, shut the EPs down and release everything; further
        calls do nothing.

        Runs that begin meanwhile are refused. `RunOptions.terminate` shortens the wait.

        Raises:
            RuntimeException: called from within a run of this session, which it would
                wait for.
        """
        if getpid() != self._process:
            return
        if get_ident() in self._running:
            raise RuntimeException(
                "close was called from within a run of the same session.",
                hint="Close the session after the run, or from another thread.",
            )
        self._closed = True
        with self._closing:
            while self._running:
                time.sleep(_POLL_SECONDS)
            state = self._state
            self._state = None
            if state is not None:
                state.providers.close()

    def _open(self) -> SessionState:
        if self._state is None or getpid() != self._process:
            raise self._over()
        return self._state

    def _over(self) -> RuntimeException:
        if getpid() == self._process:
            return RuntimeException(
                "the session is closed.", hint="Make a new session."
            )
        return RuntimeException(
            "this session was made before the process was forked: its EPs and threads "
            "are the parent's.",
            hint=(
                "Make a session in the child, or start processes with the method "
                "'spawn' or 'forkserver'."
            ),
        )

    def __getstate__(self) -> NoReturn:
        """Refuse to be pickled or copied; a subclass may have a state of its own, such
        as the model's path.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            "an InferenceSession cannot be pickled or copied: it holds devices, "
            "threads and mapped files.",
            hint=(
                "Hand over the model's path and options, and make a session where it "
                "is to run."
            ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A constructor that raised leaves no state behind.
        state = self.__dict__.get("_state")
        # At the interpreter's end the module's names may be gone before a session is.
        if state is None or not callable(getpid):
            return
        if getpid() != self._process:
            keep_forever(state)
        else:
            state.providers.close()


def open_session(request: Request) -> SessionState:
    """Load a model and make it ready to run, here or in another process; see
    `InferenceSession`.
    """
    exports = request.config.context_enable
    if request.config.isolation is Isolation.ALL and not exports:
        from epctx_core.sessions.isolation import load_elsewhere

        return load_elsewhere(request)  # type: ignore[no-any-return]
    if request.config.compile_isolation is not Isolation.NONE:
        from epctx_core.compiling.out_of_process import load_isolated

        state = load_isolated(request)
        if state is not None:
            return state
    exporter = None
    if exports:
        # Loading and running need nothing of compiling to files.
        from epctx_core.compiling.compiler import prepare_export

        exporter = prepare_export(request)
    return load_session(request, exporter)
