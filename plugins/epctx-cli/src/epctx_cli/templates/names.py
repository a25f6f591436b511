"""All names of a new plugin, from one word. Writes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass

from epctx_core.errors import InvalidArgument
from epctx_core.ext import known_name

LONGEST = 40
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OWN_WORDS = frozenset({"core", "cpu", "sim"})


@dataclass(frozen=True, kw_only=True)
class PluginNames:
    """The names of a plugin; `of("acme")` gives those in the examples.

    Attributes:
        word: what the author gave (`acme`), also the `[ep]` part of binaries' names.
        distribution: the pip package (`epctx-acme`), also the folder.
        module: what is imported (`epctx_acme`).
        camel: the word as classes begin (`Acme`).
        magic: eight characters that begin the plugin's payloads (`ACME0001`).
    """

    word: str
    distribution: str
    module: str
    camel: str
    magic: str

    @property
    def ep(self) -> str:
        """The EP type (`AcmeExecutionProvider`)."""
        return f"{self.camel}ExecutionProvider"

    @property
    def provider(self) -> str:
        """The class (`AcmeProvider`)."""
        return f"{self.camel}Provider"

    @classmethod
    def of(cls, word: str) -> PluginNames:
        """Derive the names.

        Raises:
            InvalidArgument: the word is none that a package, a module and an EP type can be named after,
                or it is taken.
        """
        _refuse_bad_word(word)
        parts = word.split("-")
        return cls(
            word=word,
            distribution=f"epctx-{word}",
            module=f"epctx_{word.replace('-', '_')}",
            camel="".join(part.capitalize() for part in parts),
            magic=f"{''.join(parts).upper():_<4.4}0001",
        )


def _refuse_bad_word(word: str) -> None:
    if word.lower().startswith(("epctx-", "epctx_")):
        raise InvalidArgument(
            f"the plugin name {word!r} begins with 'epctx', which is put before it anyway.",
            hint=f"Give {word[len('epctx-') :]!r}.",
        )
    if not _WORD.fullmatch(word) or len(word) > LONGEST:
        near = re.sub(r"[^a-z0-9]+", "-", word.lower()).lstrip("-0123456789")[:LONGEST].rstrip("-")
        raise InvalidArgument(
            f"{word!r} cannot name a plugin: a name has 1 to {LONGEST} lower-case letters, digits and single "
            "dashes, and begins with a letter.",
            hint=f"Try {near!r}." if near else "Try one such as 'acme'.",
        )
    known = known_name(word)
    if word.partition("-")[0] in _OWN_WORDS:
        raise InvalidArgument(
            f"the plugin name {word!r} is epctx's own.", hint="Name it after your device or company."
        )
    if known is not None:
        raise InvalidArgument(
            f"the name {known.reserved} and the EP type {known.ep} are reserved for {known.vendor}.",
            hint="Name it after your device or company.",
        )
