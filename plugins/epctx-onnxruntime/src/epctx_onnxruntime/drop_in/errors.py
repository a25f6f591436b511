"""Errors of epctx that are also instances of onnxruntime's exception classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

from epctx_core.errors import EpctxError, ErrorCode, InvalidArgument
from epctx_onnxruntime.real import native

_P = ParamSpec("_P")
_R = TypeVar("_R")

_NATIVE: dict[ErrorCode, type[Exception]] = {
    ErrorCode.FAIL: native.Fail,
    ErrorCode.INVALID_ARGUMENT: native.InvalidArgument,
    ErrorCode.NO_SUCHFILE: native.NoSuchFile,
    ErrorCode.RUNTIME_EXCEPTION: native.RuntimeException,
    ErrorCode.INVALID_PROTOBUF: native.InvalidProtobuf,
    ErrorCode.NOT_IMPLEMENTED: native.NotImplemented,
    ErrorCode.INVALID_GRAPH: native.InvalidGraph,
    ErrorCode.EP_FAIL: native.EPFail,
    ErrorCode.MODEL_LOAD_CANCELED: native.ModelLoadCanceled,
    ErrorCode.MODEL_REQUIRES_COMPILATION: native.ModelRequiresCompilation,
    ErrorCode.NOT_FOUND: native.NotFound,
    ErrorCode.PLUGIN_ERROR: native.EPFail,
}
"""Exception class of onnxruntime for each code; for a plugin's fault that of EPs."""


@cache
def _combine(cls: type[EpctxError]) -> type[EpctxError]:
    """Return a subclass of an error's class that is one of onnxruntime's, too."""
    bases: tuple[type, ...] = (cls, _NATIVE[cls.code])
    if cls.code is ErrorCode.RUNTIME_EXCEPTION:
        # onnxruntime's classes for runs that were terminated or whose kernels fail.
        bases += (native.Fail, RuntimeError)
    if issubclass(cls, InvalidArgument):
        # onnxruntime's bindings raise these for arguments of a wrong kind.
        bases += (RuntimeError, TypeError)
    members = {
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        # The class has no name that pickle could find: a pool's worker raises errors.
        "__reduce__": _reduce,
    }
    return type(cls.__name__, bases, members)


def _reduce(error: EpctxError) -> tuple[Any, ...]:
    # The path of an ImportError is not in its `vars`.
    state = {**vars(error), "path": error.path}
    return _rebuild, (type(error).__mro__[1], error.args, state)


def _rebuild(
    cls: type[EpctxError], arguments: tuple[Any, ...], state: dict[str, Any]
) -> EpctxError:
    error = cls(*arguments)
    for name, value in state.items():
        setattr(error, name, value)
    adopt(error)
    return error


def adopt(error: EpctxError) -> None:
    """Make an error an instance of onnxruntime's class, too: it stays the same object,
    with its traceback and cause.
    """
    if not isinstance(error, _NATIVE[error.code]):
        error.__class__ = _combine(type(error))  # type: ignore[arg-type]


def with_native_errors(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function whose errors `adopt` was called on."""

    @wraps(function)
    def calling(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except EpctxError as error:
            adopt(error)
            raise

    return calling


def adopt_methods(cls: type, *names: str) -> None:
    """Have a class raise the errors of inherited methods as `with_native_errors`
    does.
    """
    for name in names:
        setattr(cls, name, with_native_errors(getattr(cls, name)))
