"""The payload: a tar of the compile cache directory, as the real EP has it, made and
read in memory.

Two members: `context.json` says which graphs there are, in the order of their `index`;
`compiled.sim` is the simulated SDK's container. The former is filled up with spaces, so
that the latter begins on a page and its weights are used where they lie.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from epctx_sim_sdk.container import PAGE, read_json
from epctx_sim_sdk.foreign import recognise, suggest_fix
from epctx_sim_sdk.versions import RESTORE

from epctx_core.errors import InvalidGraph
from epctx_sim_vitisai import tar
from epctx_sim_vitisai.settings import EP

if TYPE_CHECKING:
    from epctx_core.plugin import Payload
    from epctx_sim_vitisai.recording import Recording

FOLDER = "SIMULATED-not-for-hardware"
CONTEXT = f"{FOLDER}/context.json"
COMPILED = f"{FOLDER}/compiled.sim"
MEMBERS = (CONTEXT, COMPILED)
MAX_CONTEXT = 1 << 26
"""Bytes of context.json: enough for half a million graphs."""
CONTEXT_FACT = "context"
"""The fact of the container that holds the digest of context.json, so that both belong
together.
"""


@dataclass(frozen=True, kw_only=True)
class Description:
    """Content of context.json.

    Attributes:
        prefix: the archive's finalised key, the attribute `cache_file_prefix` of its
            nodes.
        cache_key: the option `cache_key` it was made with, or empty.
        graphs: names in the order of `index`.
        models: of a share group, the places of each model's graphs; empty for one model
            that has all.
    """

    prefix: str
    cache_key: str
    graphs: tuple[str, ...]
    models: tuple[tuple[int, ...], ...] = ()

    def encode(self) -> bytes:
        """Return JSON, filled up with spaces so that what follows it in the archive
        begins on a page.
        """
        content = {
            "simulated": "made by epctx-sim-vitisai, not for hardware",
            "cache_file_prefix": self.prefix,
            "cache_key": self.cache_key,
            "graphs": self.graphs,
            **({"models": self.models} if self.models else {}),
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        return text + b" " * (-(len(text) + 2 * tar.BLOCK) % PAGE)

    def missing(self, places: Container[int]) -> int | None:
        """Return the first place that a model with these places lacks; None if it is
        complete.

        A model has all graphs, or those of one or more of the archive's models.
        """
        models = self.models or (tuple(range(len(self.graphs))),)
        complete = [
            model for model in models if all(place in places for place in model)
        ]
        whole = {place for model in complete for place in model}
        for model in models:
            if any(place in places and place not in whole for place in model):
                return next(place for place in model if place not in places)
        return None

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the encoded form."""
        return hashlib.sha256(self.encode()).hexdigest()


def describe(
    prefix: str, cache_key: str, graphs_by_model: Iterable[tuple[str, ...]]
) -> Description:
    """Return what context.json says of an archive.

    Args:
        prefix, cache_key: see `Description`.
        graphs_by_model: the names of each model's graphs. A graph that several have is
            in it once.
    """
    models = dict.fromkeys(graphs_by_model)
    place: dict[str, int] = {}
    for name in chain.from_iterable(models):
        place.setdefault(name, len(place))
    places = (
        tuple(tuple(place[name] for name in model) for model in models)
        if len(models) > 1
        else ()
    )
    return Description(
        prefix=prefix, cache_key=cache_key, graphs=tuple(place), models=places
    )


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An opened archive.

    Attributes:
        name: the payload's name, for messages.
        description: what context.json says.
        view: the container.
        digest: the payload's root digest, or None.
        verified: whether the core has digested the payload.
        is_file: False, as it is a part of one.
    """

    name: str
    description: Description
    context_digest: str
    view: memoryview
    digest: str | None = None
    verified: bool = False
    is_file: bool = False

    def as_file(self) -> str:
        """Not to be asked for: no member of an archive is ever put into a file.

        Raises:
            InvalidGraph: always.
        """
        raise InvalidGraph(
            f"{EP}: the archive {self.name} is read in memory only.", ep=EP
        )


def write_archive(
    payload: Payload,
    description: Description,
    container: Recording,
    before_step: Callable[[], None],
) -> None:
    """Write an archive.

    Args:
        payload: nothing may have been written to it.
        description: of the graphs in the container.
        container: the SDK's.
        before_step: called before each piece; may raise.
    """
    context = description.encode()
    payload.write(
        tar.header(CONTEXT, len(context))
        + context
        + tar.header(COMPILED, container.size)
    )
    container.replay(payload, before_step)
    payload.write(tar.padding(container.size) + tar.END)


def open_archive(view: memoryview, *, node: str, name: str) -> Archive:
    """Open a payload that is not encrypted; the container in it is not looked into.

    Raises:
        InvalidGraph: empty, truncated, altered, or another vendor's.
    """
    try:
        _check_origin(view)
        members = _read(view)
        context = bytes(members[CONTEXT])
        description = _decode(context)
    except tar.BadTarError as error:
        raise InvalidGraph(
            f"{EP} cannot load node {node!r}: the payload {name} {error}.",
            node=node,
            ep=EP,
            hint=RESTORE if is_own(view) else suggest_fix(view),
        ) from error
    digest = hashlib.sha256(context).hexdigest()
    return Archive(
        name=name,
        description=description,
        context_digest=digest,
        view=members[COMPILED],
    )


def check_belongs_together(
    archive: Archive, made_by: Mapping[str, str], graphs: Sequence[str], node: str
) -> None:
    """Do nothing if context.json and the container of an archive were made together.

    Args:
        archive: opened.
        made_by: the facts of its container.
        graphs: the names of the container's graphs, in any order.
        node: for the message.

    Raises:
        InvalidGraph: they were not.
    """
    described = archive.description.graphs
    if made_by.get(CONTEXT_FACT) != archive.context_digest or sorted(
        described
    ) != sorted(graphs):
        raise InvalidGraph(
            f"{EP} cannot load node {node!r}: the payload {archive.name} is damaged: "
            f"its {CONTEXT!r} is not the one that {COMPILED!r} was made with.",
            node=node,
            ep=EP,
            hint=RESTORE,
        )


def _read(view: memoryview) -> Mapping[str, memoryview]:
    members = tar.members(view, MEMBERS)
    if len(members[CONTEXT]) > MAX_CONTEXT:
        raise tar.BadTarError(
            f"is damaged: its {CONTEXT!r} has more than {MAX_CONTEXT:,} bytes"
        )
    return members


def is_own(view: memoryview) -> bool:
    """Return whether a payload that is not encrypted begins as one that was made
    here.
    """
    return tar.looks_like_tar(view) and tar.first_name(view) == CONTEXT


def _check_origin(view: memoryview) -> None:
    if not len(view):
        raise tar.BadTarError("is empty")
    if is_own(view):
        return
    what = recognise(view)
    if what is not None:
        raise tar.BadTarError(
            f"is {what}; this {EP} is simulated and reads only what it wrote itself"
        )
    if len(view) < tar.BLOCK:
        raise tar.BadTarError(
            f"is truncated or foreign: it has {len(view)} bytes, less than a tar header"
        )
    raise tar.BadTarError(
        f"is damaged or foreign: it begins with {bytes(view[:8]).hex(' ')}, and not "
        f"as this simulated {EP} begins one"
    )


def _decode(content: bytes) -> Description:
    try:
        fields: Any = read_json(content)
        prefix = fields["cache_file_prefix"]
        key = fields["cache_key"]
        graphs = fields["graphs"]
        models = tuple(map(tuple, fields.get("models", ())))
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise tar.BadTarError(f"is damaged: its {CONTEXT!r} cannot be read") from error
    places = [place for model in models for place in model]
    named = isinstance(graphs, list) and all(
        isinstance(text, str) for text in (prefix, key, *graphs)
    )
    if not named or not all(
        isinstance(p, int) and 0 <= p < len(graphs) for p in places
    ):
        raise tar.BadTarError(
            f"is damaged: its {CONTEXT!r} says something else than names"
        )
    return Description(
        prefix=prefix, cache_key=key, graphs=tuple(graphs), models=models
    )
