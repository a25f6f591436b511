"""Exceptions of epctx.

    EpctxError                      .code .node .ep .path .hint
    |-- Fail                        output exists, nothing compiled under the flag,
    |   |                           a callback raised
    |   `-- InternalError           an unexpected exception: a mistake in epctx
    |-- InvalidArgument             an option, an argument, an input of `run`
    |                               (also ValueError)
    |-- NoSuchFile                  a path that the caller gave does not exist
    |                               (also FileNotFoundError)
    |-- RuntimeException            an EP or a kernel raised in `run`
    |-- InvalidProtobuf             not a protobuf
    |-- NotImplementedByProvider    no plugin for a source, or an operator that no
    |                               engine has
    |-- InvalidGraph                a payload or a name from a model is wrong, or the
    |                               checker refuses the model
    |-- EPFail                      an EP raised in `compile`
    |-- ModelLoadCanceled           cancelled
    |-- ModelRequiresCompilation    compiling is forbidden and would be needed
    |-- NotFound                    a look-up found nothing
    |   `-- PackageMissing          a package of epctx that is needed is not installed
    |                               (also ImportError)
    `-- PluginError                 a plugin failed to import, broke the contract,
                                    crashed, timed out

Codes are those of ONNX Runtime's `OrtErrorCode`. A message says what happened, to which
object and why; `hint` says what to do next and is printed below the message.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator, contextmanager
from enum import IntEnum
from errno import ENOENT
from typing import Any, ClassVar

LONGEST_MESSAGE = 1 << 14
"""Maximum length of a message: a name from a foreign model may have millions of
characters, and hosts log messages.
"""


SHORTEST_SECRET = 4
"""Minimum length of a secret that `concealed` replaces; shorter ones occur in ordinary
words.
"""
_concealed: dict[int, list[str]] = {}
"""Secrets by the identity of their owner.

Reference counts would be wrong after a race of two sessions.
"""


def conceal(secrets: Iterable[str], owner: object) -> None:
    """Let `concealed` replace secrets, such as values of an EP's secret options, as
    long as their owner exists.
    """
    import weakref

    long = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
    # Messages quote names, and a quoted backslash is two; and they are one line.
    quoted = [repr(secret)[1:-1] for secret in long]
    values = [*long, *quoted, *map(one_line, long)]
    if values:
        _concealed[id(owner)] = values
        weakref.finalize(owner, _concealed.pop, id(owner)).atexit = False


def one_line(text: str) -> str:
    """Return a text as one printable line.

    A name out of a model, or words of a plugin, could steer a terminal or forge lines
    of a report or a log.
    """
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable()
        else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def quote(error: BaseException) -> str:
    """Return the text of a library's exception with a space for each white space."""
    return " ".join(str(error).split())


def concealed(text: str) -> str:
    """Return a text with "[secret]" in place of each secret of an existing owner."""
    # A copy: other threads begin and end sessions meanwhile.
    secrets = {value for values in list(_concealed.values()) for value in values}
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, "[secret]")
    return text


class ErrorCode(IntEnum):
    """`OrtErrorCode` of ONNX Runtime, and PLUGIN_ERROR of epctx, far from its range."""

    FAIL = 1
    INVALID_ARGUMENT = 2
    NO_SUCHFILE = 3
    RUNTIME_EXCEPTION = 6
    INVALID_PROTOBUF = 7
    NOT_IMPLEMENTED = 9
    INVALID_GRAPH = 10
    EP_FAIL = 11
    MODEL_LOAD_CANCELED = 12
    MODEL_REQUIRES_COMPILATION = 13
    NOT_FOUND = 14
    PLUGIN_ERROR = 100


class EpctxError(Exception):
    """Base of every error that epctx raises on purpose.

    Args:
        message: what happened, to which object, and why; becomes one printable line.
        node: the name of the node concerned, if there is one.
        ep: the name of the EP concerned, such as `QNNExecutionProvider`.
        path: the file or folder concerned.
        hint: what to do next, one or two sentences.
    """

    code: ClassVar[ErrorCode] = ErrorCode.FAIL

    def __init__(
        self,
        message: str,
        *,
        node: str | None = None,
        ep: str | None = None,
        path: str | os.PathLike[str] | None = None,
        hint: str | None = None,
    ) -> None:
        if _concealed:
            message = concealed(message)
            hint = hint and concealed(hint)
        if len(message) > LONGEST_MESSAGE:
            message = (
                f"{message[:LONGEST_MESSAGE]} [and {len(message) - LONGEST_MESSAGE:,} "
                "characters more]"
            )
        message = one_line(message)
        super().__init__(message)
        self.message = message
        self.node = node
        self.ep = ep
        self.path = path
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class Fail(EpctxError):
    """An output exists, nothing could be compiled under the flag, or a callback
    raised.
    """


class InternalError(Fail):
    """Unexpected exception, which is the `__cause__`: a mistake in epctx.

    Please report it.
    """


class InvalidArgument(EpctxError, ValueError):
    """An option, an argument, or an input name, type or shape of `run` is wrong."""

    code = ErrorCode.INVALID_ARGUMENT


class NoSuchFile(EpctxError, FileNotFoundError):
    """A path that the caller gave does not exist.

    `errno` and `filename` are set as in any OSError.
    """

    code = ErrorCode.NO_SUCHFILE
    errno = ENOENT

    @property
    def filename(self) -> str | os.PathLike[str] | None:
        """The path."""
        return self.path

    @filename.setter
    def filename(self, path: str | os.PathLike[str] | None) -> None:
        # tblib, which Dask installs, unpickles exceptions by setting what they have.
        self.path = path


class RuntimeException(EpctxError):
    """An EP or a kernel raised while a model was run."""

    code = ErrorCode.RUNTIME_EXCEPTION


class InvalidProtobuf(EpctxError):
    """The bytes given as a model are not an ONNX protobuf."""

    code = ErrorCode.INVALID_PROTOBUF


class NotImplementedByProvider(EpctxError):
    """No plugin takes a node's source, or no engine has an operator."""

    code = ErrorCode.NOT_IMPLEMENTED


class InvalidGraph(EpctxError):
    """A model, a payload or a name from a model is wrong."""

    code = ErrorCode.INVALID_GRAPH


class EPFail(EpctxError):
    """An EP raised while it compiled its partitions."""

    code = ErrorCode.EP_FAIL


class ModelLoadCanceled(EpctxError):
    """The host cancelled the work."""

    code = ErrorCode.MODEL_LOAD_CANCELED


class ModelRequiresCompilation(EpctxError):
    """`session.disable_model_compile` is set and an EP would have to compile."""

    code = ErrorCode.MODEL_REQUIRES_COMPILATION


class NotFound(EpctxError):
    """A look-up by name found nothing."""

    code = ErrorCode.NOT_FOUND


class PackageMissing(NotFound, ImportError):
    """A name, an option or a command needs a package of epctx that is not installed."""

    path: Any  # ImportError's is text alone


class PluginError(EpctxError):
    """A plugin failed to import, broke the contract, crashed or timed out.

    `hook`, `distribution` and `version` identify the failure; the plugin's own
    exception is `__cause__`. For the other arguments see `EpctxError`.
    """

    code = ErrorCode.PLUGIN_ERROR

    def __init__(
        self,
        message: str,
        *,
        hook: str | None = None,
        distribution: str | None = None,
        version: str | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message, **facts)
        self.hook = hook
        self.distribution = distribution
        self.version = version


def describe(error: BaseException) -> str:
    """Return type and text of an exception; the type alone if its `__str__` fails."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - it is a plugin's exception class: even SystemExit may come out of it
        text = ""
    return (
        concealed(f"{type(error).__name__}: {text}") if text else type(error).__name__
    )


def suggestion(name: str, names: object, cutoff: float = 0.65) -> str:
    """Return " Did you mean 'x'?" for the closest of the known names, or an empty
    string.

    Args:
        name: the unknown name.
        names: the known ones.
        cutoff: likeness from which a name counts, of 1 for equal ones; see
            `difflib.get_close_matches`.
    """
    import difflib

    close = difflib.get_close_matches(name, [str(k) for k in names], n=1, cutoff=cutoff)  # type: ignore[attr-defined]
    return f" Did you mean {close[0]!r}?" if close else ""


@contextmanager
def convert_errors(doing: str) -> Iterator[None]:
    """Convert all exceptions of an outermost call, such as a compile, into typed
    errors; also a decorator.

    An OSError that was not handled becomes a `Fail`: a disk can refuse any read. Any
    other exception becomes an `InternalError`. These pass unchanged: exceptions that
    are not an `Exception`, such as a KeyboardInterrupt; a MemoryError; a warning, which
    the host turned into an error; and the TypeError of a call with arguments that the
    decorated function does not have. Exceptions of host callbacks and plugins are
    converted at their calls.

    Args:
        doing: the beginning of the message, such as "compiling the model".
    """
    try:
        yield
    except (EpctxError, MemoryError, Warning):  # NoSuchFile is an OSError too
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename is not None else ""
        raise Fail(
            f"{doing} failed: {error.strerror or error}{where}.",
            path=error.filename if isinstance(error.filename, str) else None,
            hint=(
                "The system refused this. Check the disk and its permissions, then "
                "try again."
            ),
        ) from error
    except Exception as error:
        if isinstance(error, TypeError) and _is_wrong_call(error):
            raise
        raise internal_error(doing, error) from error


def _is_wrong_call(error: TypeError) -> bool:
    """Return whether a decorated function was not entered: the last frame is that of
    the decorator, which calls it.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    decorator = ContextDecorator.__call__.__code__
    return last is not None and last.tb_frame.f_code in decorator.co_consts


def internal_error(doing: str, error: Exception) -> InternalError:
    """Return the error for an unexpected exception; the caller makes that one its
    cause.
    """
    description = f"{type(error).__name__}: {error}".rstrip(": ")
    return InternalError(
        f"{doing} failed within epctx itself: {description}",
        hint=(
            "This is a mistake in epctx: please report it with the traceback of its "
            "cause (`__cause__`, or -v)."
        ),
    )
