"""ONNX's backend interface over epctx: the official test runner, and any code written
for it, drives sessions of ours.

`prepare` and the other functions have the names and arguments that `onnx.backend` and
`onnxruntime.backend` use.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from epctx_core import (
    InferenceSession,
    ModelCompiler,
    Registry,
    SessionOptions,
    default_registry,
)
from epctx_core.errors import InvalidArgument, NotImplementedByProvider

if TYPE_CHECKING:
    from types import TracebackType

    from epctx_core import RunOptions
    from epctx_core.plugin import ExecutionProvider

__all__ = [
    "EpctxBackend",
    "EpctxBackendRep",
    "is_compatible",
    "make_backend",
    "prepare",
    "run",
    "run_model",
    "run_node",
    "supports_device",
]

Model: TypeAlias = onnx.ModelProto | bytes | str | os.PathLike[str]
Provider: TypeAlias = "str | type[ExecutionProvider]"
Providers: TypeAlias = "Sequence[Provider | tuple[Provider, Mapping[str, object]]]"
"""EPs in order of priority, by name or class, each with or without its options."""
Through: TypeAlias = Literal["direct", "file", "embed"]

FOLDER_PREFIX = "epctx-backend-"
WAYS = ("direct", "file", "embed")
_CPU = "CPUExecutionProvider"
_TOLERANCES = ("rtol", "atol")  # the official runner hands its own options on


class EpctxBackendRep(BackendRep):
    """A model that is ready to run.

    Closed by `close`, a `with` block, or when it is no longer used.

    Attributes:
        session: the session that runs it.
        operators: how many nodes EPs other than the CPU EP took, by operator.
        claimed: how many in all.
    """

    def __init__(
        self,
        session: InferenceSession,
        operators: Counter[str],
        folder: TemporaryDirectory[str] | None,
    ) -> None:
        self.session = session
        self.operators = operators
        self.claimed = operators.total()
        self.close = weakref.finalize(self, _release, session, folder)

    def run(
        self,
        inputs: Any,
        *,
        run_options: RunOptions | None = None,
        **kwargs: Any,  # noqa: ARG002 - of the runner
    ) -> tuple[Any, ...]:
        """Run the model and return all outputs in its order.

        Args:
            inputs: values in the model's order, or by name, or the value of the only
                input.
            run_options: options of this run.
        """
        if not isinstance(inputs, Mapping):
            values = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            names = [each.name for each in self.session.get_inputs()]
            inputs = dict(zip(names, values, strict=False))
        feeds = {
            name: np.asarray(x) if isinstance(x, np.generic) else x
            for name, x in inputs.items()
        }
        return tuple(self.session.run(None, feeds, run_options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _release(session: InferenceSession, folder: TemporaryDirectory[str] | None) -> None:
    session.close()
    if folder is not None:
        folder.cleanup()


class EpctxBackend(Backend):
    """epctx as a backend of ONNX; `make_backend` makes one with other defaults."""

    providers: ClassVar[Providers | None] = None
    through: ClassVar[Through] = "direct"
    options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether inputs and outputs can be on a device: they are in the CPU's
        memory, wherever an EP runs.
        """
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:  # noqa: ARG003
        """Return `supports_device(device)`: only `prepare` finds out about a model,
        with a reason.
        """
        return cls.supports_device(device)

    @classmethod
    def prepare(
        cls,
        model: Model,
        device: str = "CPU",
        providers: Providers | None = None,
        through: Through | None = None,
        **options: Any,
    ) -> EpctxBackendRep:
        """Make a session of a model, in one step or over a context model.

        Args:
            model: a ModelProto, a serialised one, or a path.
            device: "CPU".
            providers: EPs; None: those of this class, by default the CPU EP.
            through: direct: a session of the model. file: of a context model with
                payloads in files beside it, compiled into a temporary folder. embed: of
                one in memory with its payloads inside. None: that of this class.
            options: attributes of `SessionOptions`; names with a dot are config
                entries.

        Raises:
            InvalidArgument: the device, the way or an option does not exist, or EPs are
                no sequence.
            EpctxError: as `InferenceSession` and `ModelCompiler` raise.
        """
        through = cls.through if through is None else through
        if through not in WAYS or not cls.supports_device(device):
            wrong = f"device {device!r}" if through in WAYS else f"through={through!r}"
            raise InvalidArgument(
                f"epctx's backend has no {wrong}.",
                hint='Give device="CPU" and a through of ' + ", ".join(WAYS) + ".",
            )
        source = (
            model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        )
        chosen = _split(cls.providers if providers is None else providers)
        session_options = _make_session_options(chosen, {**cls.options, **options})
        registry = _make_registry([ep for ep, _ in chosen])
        if through == "direct":
            return _open(source, session_options, registry)
        return _compile_and_open(source, session_options, registry, through)

    @classmethod
    def run_model(
        cls, model: Model, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Run a model once; arguments as those of `prepare`, inputs as those of
        `EpctxBackendRep.run`.
        """
        with cls.prepare(model, device, **kwargs) as rep:
            return rep.run(inputs)

    @classmethod
    def run_node(cls, *_arguments: Any, **_named: Any) -> Any:
        """Refuse a node alone, as onnxruntime's backend does.

        Raises:
            NotImplementedByProvider: always.
        """
        raise NotImplementedByProvider(
            "epctx's backend runs no node alone.",
            hint="Make a model of it: onnx.helper.make_model, then run_model.",
        )


def make_backend(
    providers: Providers | None = None, through: Through = "direct", **options: Any
) -> type[EpctxBackend]:
    """Return a backend whose `prepare` has these defaults, for code that takes a
    backend and no arguments.

    Args:
        providers, through, options: as of `EpctxBackend.prepare`.

    Examples:
        >>> backend = make_backend(["QNN"], "file")
        >>> tests = onnx.backend.test.BackendTest(backend, __name__)
    """
    return type(
        "BoundBackend",
        (EpctxBackend,),
        {"providers": providers, "through": through, "options": options},
    )


def _split(providers: Providers | None) -> list[tuple[Provider, Mapping[str, object]]]:
    if isinstance(providers, str):
        raise InvalidArgument(
            f"providers={providers!r} is a text.",
            hint=f"Give a sequence of EPs: providers=[{providers!r}].",
        )
    return [
        provider if isinstance(provider, tuple) else (provider, {})
        for provider in providers or ()
    ]


def _make_session_options(
    providers: Sequence[tuple[Provider, Mapping[str, object]]],
    options: Mapping[str, Any],
) -> SessionOptions:
    result = SessionOptions()
    # Many of ONNX's cases are one operator that only moves data.
    result.add_session_config_entry("ep.partition_without_computation", "keep")
    for ep, its in providers:
        result.add_provider(ep if isinstance(ep, str) else ep.name, dict(its))
    for name, value in options.items():
        if "." in name:
            result.add_session_config_entry(name, str(value))
        elif name not in _TOLERANCES:
            setattr(result, name, value)
    return result


def _make_registry(providers: Sequence[Provider]) -> Registry:
    """Return the default registry, or one that has the given classes, too."""
    classes = [ep for ep in providers if not isinstance(ep, str)]
    if not classes:
        return default_registry
    registry = Registry(entry_points=len(classes) < len(providers))
    for ep in classes:
        registry.register(ep)
    return registry


def _open(model: Any, options: SessionOptions, registry: Registry) -> EpctxBackendRep:
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = InferenceSession(model, options, registry=registry)
    assigned = session.get_provider_graph_assignment_info()
    operators = Counter(
        node.op_type
        for part in assigned
        if part.ep_name != _CPU
        for node in part.get_nodes()
    )
    return EpctxBackendRep(session, operators, None)


def _compile_and_open(
    model: Any, options: SessionOptions, registry: Registry, through: Through
) -> EpctxBackendRep:
    compiler = ModelCompiler(options, model, through == "embed", registry=registry)
    folder = (
        TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True)
        if through == "file"
        else None
    )
    try:
        written: Path | bytes = Path(folder.name, "model_ctx.onnx") if folder else b""
        if isinstance(written, Path):
            compiler.compile_to_file(written)
        else:
            written = compiler.compile_to_bytes()
        report = compiler.report
        session = InferenceSession(written, options, registry=registry)
    except BaseException:
        if folder is not None:
            folder.cleanup()
        raise
    operators = Counter(
        operator
        for part in (report.partitions if report else ())
        for operator in part.operators
    )
    return EpctxBackendRep(session, operators, folder)


supports_device = EpctxBackend.supports_device
is_compatible = EpctxBackend.is_compatible
prepare = EpctxBackend.prepare
run_model = EpctxBackend.run_model
run_node = EpctxBackend.run_node
run = run_model
