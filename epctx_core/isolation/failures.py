"""Errors on their way between processes: class, words and what they name; never an object."""

from __future__ import annotations

import traceback
from typing import Any

from epctx_core import errors
from epctx_core.errors import EpctxError, PluginError
from epctx_core.isolation.channel import Message, ProtocolError

_CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if isinstance(cls, type) and issubclass(cls, EpctxError) and cls is not EpctxError
}
_FIELDS = ("node", "ep", "path", "hint")
_PLUGIN_FIELDS = ("hook", "distribution", "version")
_LONGEST = 1 << 16
"""Characters of one text of an error."""


class RemoteError(Exception):
    """What was raised in the other process; its text is the traceback there."""


class HostError(Exception):
    """What the host raised while it did something for an EP and is no error of the tree, in the EP's process."""


def encode_error(error: EpctxError) -> dict[str, Any]:
    """Return what tells the other process of an error."""
    fields: tuple[str, ...] = _FIELDS + (_PLUGIN_FIELDS if isinstance(error, PluginError) else ())
    cls = next(c.__name__ for c in type(error).__mro__ if c.__name__ in _CLASSES)
    said = {name: getattr(error, name) for name in fields}
    return {
        "error": cls,
        "message": error.message[:_LONGEST],
        "fields": {name: str(value)[:_LONGEST] for name, value in said.items() if value is not None},
        "trace": "".join(traceback.format_exception(error))[-_LONGEST:],
    }


def decode_error(message: Message) -> EpctxError:
    """Return the error that a message tells of; its cause is the traceback of the other process.

    Raises:
        ProtocolError: it tells of none.
    """
    cls, fields = _CLASSES.get(message.text("error")), message.head.get("fields")
    if cls is None or type(fields) is not dict:
        raise ProtocolError(f"an error {message.text('error')!r:.80}")
    allowed = _FIELDS + (_PLUGIN_FIELDS if issubclass(cls, PluginError) else ())
    if not all(name in allowed and type(value) is str for name, value in fields.items()):
        raise ProtocolError("an error that names something else than errors do")
    made = cls(message.text("message"), **fields)
    made.__cause__ = RemoteError(message.text("trace"))
    return made
