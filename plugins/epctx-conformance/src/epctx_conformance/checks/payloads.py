"""Payloads that are damaged or not the EP's.

Users, networks and other programs change files. An EP refuses a payload that it did not
write, with an InvalidGraph that names the fault, and never computes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from epctx_conformance.contained import Cases, Harm, try_cases
from epctx_conformance.harness import disagreement
from epctx_conformance.models import separated
from epctx_conformance.table import CheckFailed, check
from epctx_core import inspect_model, verify_model
from epctx_core.errors import EpctxError, InvalidGraph
from epctx_core.plugin import CORE_ATTRIBUTES

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness
    from epctx_core import SessionOptions

_REFUSE = (
    "Raise epctx_core.errors.InvalidGraph in load_context, with payload and fault in "
    "the message and what to do as hint."
)
_MANY = 48
_SHORTEST_MESSAGE = 10
_MANIFEST = "epctx.manifest"
"""Key of the manifest in `metadata_props`."""
_HEAD_BYTES = 16
"""Bytes in which most formats have their magic number and version."""
_LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:"
    + b"0" * 64
    + b"\nsize 1048576\n"
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Context model and its payloads, apart.

    Attributes:
        name: the context model's file name.
        proto: the model without its manifest.
        payloads: file name to content.
        weights: the ranges of the largest payload that hold weights, which an EP need
            not read to load.
    """

    name: str
    proto: onnx.ModelProto
    payloads: Mapping[str, bytes]
    weights: tuple[range, ...]

    @property
    def main(self) -> str:
        """The name of the largest payload."""
        return max(self.payloads, key=lambda name: len(self.payloads[name]))

    @property
    def content(self) -> bytes:
        """The largest payload."""
        return self.payloads[self.main]

    def write(
        self,
        folder: Path,
        *,
        payload: bytes | None = None,
        proto: onnx.ModelProto | None = None,
    ) -> Path:
        """Write it into a folder, with another main payload or another model; return
        the model's path.
        """
        for name, content in self.payloads.items():
            (folder / name).write_bytes(
                payload if payload is not None and name == self.main else content
            )
        path = folder / self.name
        path.write_bytes((proto or self.proto).SerializeToString())
        return path


def take_apart(path: Path) -> Parts:
    """Return the parts of a context model whose payloads lie in files beside it."""
    proto = onnx.load(path)
    payloads = {
        file.name: file.read_bytes() for file in path.parent.iterdir() if file != path
    }
    largest = max(payloads, key=lambda name: len(payloads[name]))
    manifest = inspect_model(path).manifest
    entry = manifest.find_entry(largest, embedded=False) if manifest else None
    segments = entry.segments if entry else ()
    weights = tuple(
        range(s.offset, s.offset + s.length) for s in segments if s.is_weight
    )
    return Parts(
        name=path.name,
        proto=_remove_manifest(proto),
        payloads=payloads,
        weights=weights,
    )


def _remove_manifest(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Take the manifest out of a model; return the model."""
    kept = [entry for entry in proto.metadata_props if entry.key != _MANIFEST]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return proto


def _list_context_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in proto.graph.node if node.op_type == "EPContext"]


def _flip(content: bytes, offset: int) -> bytes:
    """Return the content with all bits of one byte inverted."""
    changed = bytearray(content)
    changed[offset] ^= 0xFF
    return bytes(changed)


def _expect_refused(
    harness: Harness,
    source: Path | bytes,
    what: str,
    *,
    feeds: Any = None,
    expected: Any = None,
    options: SessionOptions | None = None,
) -> None:
    """Raise CheckFailed unless a load refuses; with `expected` a load that gives these
    results is fine, too.
    """
    try:
        session = harness.session(source, options)
    except InvalidGraph as error:
        if len(error.message) < _SHORTEST_MESSAGE:
            raise CheckFailed(
                f"the EP refuses {what} without saying why: {error.message!r}.",
                hint=_REFUSE,
            ) from error
        return
    except EpctxError as error:
        raise CheckFailed(
            f"{what} ends in {type(error).__name__} instead of InvalidGraph: "
            f"{error.message}",
            hint=_REFUSE,
        ) from error
    with session:
        if expected is None:
            raise Harm(f"the EP loads {what} without an error.", hint=_REFUSE)
        try:
            results = session.run(None, feeds)
        except EpctxError as error:
            raise Harm(
                f"the EP loads {what}, and only a run fails: {error.message}",
                hint=_REFUSE,
            ) from error
    different = disagreement(results, expected, tolerance=0.0)
    if different is not None:
        hint = (
            "Put a digest of its content into the payload, and compare it in "
            "load_context."
        )
        raise Harm(
            f"the EP loads {what} and gives wrong results: {different}.", hint=hint
        )


def _expect_refused_payload(
    harness: Harness, parts: Parts, content: bytes, what: str, **intact: Any
) -> None:
    _expect_refused(
        harness, parts.write(harness.folder(), payload=content), what, **intact
    )


def _run_intact(harness: Harness, parts: Parts, inputs: str) -> dict[str, Any]:
    """Return stored inputs, and the results of the intact payload for them."""
    with np.load(inputs) as stored:
        feeds = dict(stored)
    return {
        "feeds": feeds,
        "expected": harness.run(parts.write(harness.folder()), feeds),
    }


def _compile(harness: Harness) -> dict[str, str]:
    """Compile; return where the context model and inputs for it are, for another
    process.
    """
    inputs = harness.folder() / "inputs.npz"
    np.savez(inputs, **harness.network.feeds())  # type: ignore[arg-type]
    return {"path": str(harness.compile(harness.network)), "inputs": str(inputs)}


@check("payloads", "a payload needs no manifest", needs=["export"])
def check_without_manifest(harness: Harness) -> None:
    """Other programs write models without one."""
    path = take_apart(harness.compile(harness.network)).write(harness.folder())
    harness.expect_run(harness.network, "a context model without a manifest", path)


# --- damage ---------------------------------------------------------------------------


Damages: TypeAlias = Iterator[tuple[str, bytes]]
"""Descriptions of damaged payloads, and their bytes."""


def _shorten(parts: Parts, _full: bool) -> Damages:
    size = len(parts.content)
    yield "a payload cut in half", parts.content[: size // 2]
    yield "a payload without its last byte", parts.content[:-1]
    for length in (0, 1, 4, _HEAD_BYTES, 64):
        if length < size:
            yield f"a payload of which {length} bytes are left", parts.content[:length]


def _extend(parts: Parts, _full: bool) -> Damages:
    yield "a payload followed by zeros", parts.content + bytes(4096)
    yield "a payload followed by itself", parts.content * 2


def _flip_each(parts: Parts, offsets: Iterable[int]) -> Damages:
    for offset in offsets:
        what = f"a payload whose byte {offset} of {len(parts.content)} is another one"
        yield what, _flip(parts.content, offset)


def _damage_head(parts: Parts, _full: bool) -> Damages:
    return _flip_each(parts, range(min(_HEAD_BYTES, len(parts.content))))


def _damage_anywhere(parts: Parts, full: bool) -> Damages:
    """Change bytes outside of weights, and the last ones, and exchange two pieces."""
    content = parts.content
    size = len(parts.content)
    count = _MANY * (4 if full else 1)
    offsets = map(int, np.random.default_rng(0).integers(0, size, 4 * count))
    outside = [
        offset
        for offset in offsets
        if not any(offset in weight for weight in parts.weights)
    ]
    yield from _flip_each(
        parts, [*outside[:count], *range(max(0, size - _HEAD_BYTES), size)]
    )
    first = size // 4
    second = size // 2
    third = 3 * size // 4
    exchanged = (
        content[:first]
        + content[second:third]
        + content[first:second]
        + content[third:]
    )
    yield "a payload with two exchanged pieces", exchanged


def _replace(parts: Parts, _full: bool) -> Damages:
    """Replace a payload by other files that occur under such names."""
    size = len(parts.content)
    yield "a single byte", b"\x01"
    yield "zeros", bytes(size)
    yield "random bytes", np.random.default_rng(0).bytes(size)
    yield "a Git LFS pointer instead of the file", _LFS_POINTER
    yield (
        "a web page",
        b"<!DOCTYPE html><html><body>404 Not Found</body></html>".ljust(size),
    )
    yield "a ZIP archive", b"PK\x03\x04\x14\x00\x00\x00\x08\x00".ljust(size, b"\x00")
    yield "a program", b"\x7fELF\x02\x01\x01".ljust(size, b"\x00")
    yield "an ONNX model", parts.proto.SerializeToString()


_DAMAGES: tuple[tuple[str, Callable[[Parts, bool], Damages], bool], ...] = (
    ("it refuses a truncated payload", _shorten, False),
    ("it refuses an extended payload, or reads it as before", _extend, True),
    ("it refuses a payload with any other byte in its head", _damage_head, False),
    (
        "it refuses a damaged payload, or the damage does no harm",
        _damage_anywhere,
        True,
    ),
    ("it refuses a file that is not a payload", _replace, False),
)
"""Title, damages of the largest payload, and whether a load may give the right results
nevertheless.
"""


def damaged_payloads(harness: Harness, path: str, inputs: str, number: int) -> Cases:
    """Yield loads of one row of `_DAMAGES`."""
    parts = take_apart(Path(path))
    _, damages, is_harmless = _DAMAGES[number]
    intact = _run_intact(harness, parts, inputs) if is_harmless else {}
    for what, content in damages(parts, harness.full):
        yield (
            what,
            partial(_expect_refused_payload, harness, parts, content, what, **intact),
        )


def _try_row(cases: Callable[..., Cases], number: int, harness: Harness) -> None:
    """Try the row of a table with a context model; what is no damage in `_EDITS` no
    digest covers.
    """
    arguments = {**_compile(harness), "number": number}
    try_cases(harness, cases, arguments, of_payloads=cases is damaged_payloads)


for _number, _damage in enumerate(_DAMAGES):
    check("payloads", _damage[0], needs=["export"])(
        partial(_try_row, damaged_payloads, _number)
    )


def verified_payloads(harness: Harness, path: str) -> Cases:
    """Yield verifications of models with damaged payloads."""
    parts = take_apart(Path(path))
    for damages in (_shorten, _damage_head, _replace):
        for what, content in damages(parts, harness.full):
            model = parts.write(harness.folder(), payload=content)
            yield (
                f"the verification of {what}",
                partial(_expect_findings, harness, model, what),
            )


def _expect_findings(harness: Harness, model: Path, what: str) -> None:
    """Raise CheckFailed if the verification of a model ends otherwise than in findings
    about it.
    """
    for finding in verify_model(
        model, harness.session_options(), registry=harness.registry
    ).findings:
        if finding.code == "plugin-broken":
            raise CheckFailed(f"the verification of {what} fails: {finding.message}")


@check(
    "payloads",
    "its verification of a damaged payload ends in findings",
    needs=["export"],
)
def check_verified(harness: Harness) -> None:
    """`verify_payloads` lists what is wrong; it raises nothing but what `load_context`
    may.
    """
    try_cases(
        harness, verified_payloads, {"path": str(harness.compile(harness.network))}
    )


@check(
    "payloads",
    "it refuses the payload of another model",
    needs=["export", "several_partitions"],
)
def check_another_model(harness: Harness) -> None:
    """One that differs in its weights alone, and one that has more partitions, too."""
    block = harness.weighted_block
    barrier = harness.barrier
    models = (
        separated(block, barrier, count, seed=seed)
        for count, seed in ((2, 0), (2, 1), (3, 1))
    )
    mine, *others = (str(harness.compile(model)) for model in models)
    try_cases(harness, foreign_payloads, {"path": mine, "others": others})


def foreign_payloads(harness: Harness, path: str, others: Sequence[str]) -> Cases:
    """Yield loads of one model with the payloads of others."""
    mine = take_apart(Path(path))
    what = "the payload of another model"
    for other in others:
        content = take_apart(Path(other)).content
        yield what, partial(_expect_refused_payload, harness, mine, content, what)


@check("payloads", "it passes on the core's errors about a payload", needs=["export"])
def check_found_by_the_core(harness: Harness) -> None:
    """Damaged or missing, in the hands of the EP: by default the core refuses it
    whatever the EP makes of it.
    """
    path = harness.compile(harness.network)
    payload = path.parent / take_apart(path).main
    lazily = harness.session_options({"ep.context_verify": "lazy"})
    payload.write_bytes(_flip(payload.read_bytes(), 0))
    _expect_refused(
        harness, path, "a payload that is not the one of the manifest", options=lazily
    )
    payload.unlink()
    _expect_refused(harness, path, "a missing payload", options=lazily)


# --- nodes ----------------------------------------------------------------------------


def _ask_for_other_graphs(node: onnx.NodeProto) -> None:
    node.name += "_other"
    for attribute in node.attribute:
        if attribute.name == "partition_name":
            attribute.s += b"_other"


def _strip_attributes(node: onnx.NodeProto) -> None:
    kept = [
        attribute for attribute in node.attribute if attribute.name in CORE_ATTRIBUTES
    ]
    del node.attribute[:]
    node.attribute.extend(kept)


def _change_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name not in CORE_ATTRIBUTES:
            attribute.s = b"\xff unknown"
            attribute.i = -1
            attribute.f = float("nan")


_EDITS: tuple[tuple[str, Callable[[onnx.NodeProto], None], str], ...] = (
    (
        "it refuses a node whose graph is missing", _ask_for_other_graphs,
        "a model whose nodes ask for graphs that the payload does not have",
    ),
    (
        "it refuses a node without its attributes, or needs none", _strip_attributes,
        "a model whose nodes lack the EP's attributes",
    ),
    (
        "it refuses a node with other values in its attributes, or ignores them",
        _change_attributes,
        "a model whose nodes have other values in the EP's attributes",
    ),
)  # fmt: skip
"""Title, edit of each node, and a text about the model.

A load may give the right results nevertheless.
"""


def edited_nodes(harness: Harness, path: str, inputs: str, number: int) -> Cases:
    """Yield the load of one row of `_EDITS`."""
    _, edit, what = _EDITS[number]
    parts = take_apart(Path(path))
    proto = deepcopy(parts.proto)
    for node in _list_context_nodes(proto):
        edit(node)
    edited = parts.write(harness.folder(), proto=proto)
    yield (
        what,
        partial(
            _expect_refused,
            harness,
            edited,
            what,
            **_run_intact(harness, parts, inputs),
        ),
    )


for _number, _edit in enumerate(_EDITS):
    check("payloads", _edit[0], needs=["export"])(
        partial(_try_row, edited_nodes, _number)
    )


@check(
    "payloads", "it refuses a damaged payload in the model", needs=["export", "embed"]
)
def check_embedded(harness: Harness) -> None:
    """With another first byte."""
    path = harness.compile(harness.network, embed=True)
    try_cases(harness, embedded_payloads, {"path": str(path)})


def embedded_payloads(harness: Harness, path: str) -> Cases:
    """Yield the load of a damaged embedded payload."""
    proto = _remove_manifest(onnx.load(path))
    what = "a damaged payload inside the model"
    for attribute in (
        attribute for node in _list_context_nodes(proto) for attribute in node.attribute
    ):
        if attribute.name == "ep_cache_context" and attribute.s:
            attribute.s = _flip(attribute.s, 0)
    yield what, partial(_expect_refused, harness, proto.SerializeToString(), what)


@check("payloads", "it loads a good payload after a refusal", needs=["export"])
def check_good_after_bad(harness: Harness) -> None:
    """Until then nothing was compiled or run."""
    try_cases(harness, good_after_bad, _compile(harness))


def good_after_bad(harness: Harness, path: str, inputs: str) -> Cases:
    """Yield the load of a damaged payload, and behind it that of the good one."""
    parts = take_apart(Path(path))
    what = "a damaged payload"
    expected = _run_intact(harness, parts, inputs)["expected"]
    other, watch = harness.observed()
    yield (
        what,
        partial(_expect_refused_payload, other, parts, _flip(parts.content, 0), what),
    )

    def load_good() -> None:
        calls = [call.hook for call in watch.calls]
        if "on_run_start" in calls or "compile" in calls:
            raise CheckFailed(f"a refused load went on to {calls}.")
        results = _run_intact(other, parts, inputs)["expected"]
        if different := disagreement(results, expected, tolerance=0.0):
            raise CheckFailed(
                f"after a bad payload a good one gives other results: {different}."
            )

    yield "a good payload after a bad one", load_good
