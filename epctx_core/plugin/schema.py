"""The option schema of an EP: declared once, checked, converted, suggested and documented by the core."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any

from epctx_core.errors import InvalidArgument, suggestion

_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True)
class ProviderOption:
    """One option of an EP.

    Args:
        name: the key as hosts write it.
        type: `int`, `float`, `bool` or `str`; values arrive as text and are converted.
        default: the typed value used when the host gives none.
        choices: the typed values allowed; empty for any.
        doc: one sentence for error messages and lists of options.
        secret: the value never leaves the process: not in reports, manifests or logs.
        effect: False for an option that is accepted because hosts set it, and changes nothing; the core says so in
            the log, and it tells no two compiles apart.
    """

    name: str
    type: type[Any]
    _: KW_ONLY
    default: Any
    choices: tuple[Any, ...] = ()
    doc: str
    secret: bool = False
    effect: bool = True

    def parse(self, ep: str, text: object) -> Any:
        """Convert and check one value.

        Raises:
            InvalidArgument: not of the declared type, or not among the choices.
        """
        shown = "the given value" if self.secret else repr(text)
        try:
            # By way of text: int(3.7) would cut, and a host may give options as text anyway.
            value = _BOOLEANS[str(text).lower()] if self.type is bool else self.type(str(text))
        except (ValueError, TypeError, KeyError):
            raise InvalidArgument(
                f"{ep}: option {self.name!r} needs {_TYPE_WORDS.get(self.type, self.type.__name__)}, not {shown}.",
                ep=ep,
                hint=self.doc,
            ) from None
        if self.choices and value not in self.choices:
            allowed = ", ".join(str(c) for c in self.choices)
            raise InvalidArgument(
                f"{ep}: option {self.name!r} is {shown}; allowed: {allowed}.", ep=ep, hint=self.doc
            )
        return value


_TYPE_WORDS = {bool: "0 or 1", int: "a whole number", float: "a number", str: "text"}


def parse_provider_options(
    ep: str, schema: Iterable[ProviderOption], given: Mapping[str, object]
) -> Mapping[str, Any]:
    """Check what a host gave against an EP's schema; return every option, typed, defaults filled in.

    Raises:
        InvalidArgument: an unknown name (with a suggestion) or a bad value.
    """
    known = {option.name: option for option in schema}
    for name in given:
        if name not in known:
            close = suggestion(name, known)
            # A value in the place of a key, where one may be a secret.
            hidden = not close and any(option.secret for option in known.values())
            shown = "of that name, which is not shown as it may be a secret" if hidden else repr(name)
            raise InvalidArgument(
                f"{ep} has no option {shown}.{close}",
                ep=ep,
                hint=f"Its options: {', '.join(sorted(known)) or 'none'}.",
            )
    return MappingProxyType(
        {
            name: option.parse(ep, given[name]) if name in given else option.default
            for name, option in known.items()
        }
    )
