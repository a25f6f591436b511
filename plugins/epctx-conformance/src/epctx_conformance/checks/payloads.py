"""Checks of payloads that are damaged or not the EP's.

Files are changed by users, networks and other programs. An EP refuses what it did not write, with an
InvalidGraph that says what is wrong, and never computes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from epctx_conformance.models.structures import parted
from epctx_conformance.scene import disagreement
from epctx_conformance.table import CheckFailed, CheckFunction, check
from epctx_core.errors import EpctxError, InvalidGraph
from epctx_core.ext import read_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_conformance.models.building import SmallModel
    from epctx_conformance.scene import Compiled, Scene
    from epctx_core import SessionOptions

CORE_ATTRIBUTES = frozenset(
    {"ep_cache_context", "embed_mode", "main_context", "partition_name", "source", "max_size", "notes"}
)
_REFUSE = "Raise epctx_core.errors.InvalidGraph(what is wrong with which payload, hint=what to do) from load_context."
_MANY = 48
_SHORTEST_MESSAGE = 10
Damages: TypeAlias = Iterator[tuple[str, bytes]]


MANIFEST = "epctx.manifest"
"""The key of the manifest in `metadata_props`."""
HEAD_BYTES = 16
"""Where a format keeps what it is, and its version."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1048576\n"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A context model and its payloads, apart.

    Attributes:
        name: the context model's file name.
        proto: the model without its manifest.
        payloads: file name to content.
        weights: file name to the ranges that hold weights, which an EP need not read to load.
    """

    name: str
    proto: onnx.ModelProto
    payloads: Mapping[str, bytes]
    weights: Mapping[str, tuple[range, ...]]

    @property
    def main(self) -> str:
        """The name of the largest payload."""
        return max(self.payloads, key=lambda name: len(self.payloads[name]))

    @property
    def content(self) -> bytes:
        """The largest payload."""
        return self.payloads[self.main]

    def write(
        self, folder: Path, *, payload: bytes | None = None, proto: onnx.ModelProto | None = None
    ) -> Path:
        """Write it into a folder, with another main payload or another model; return the model's path."""
        for name, content in self.payloads.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(payload if payload is not None and name == self.main else content)
        path = folder / self.name
        path.write_bytes((proto or self.proto).SerializeToString())
        return path


def take_apart(compiled: Compiled) -> Parts:
    """Return the parts of a context model whose payloads lie in files."""
    proto = onnx.load(compiled.path)
    manifest = read_manifest(proto)
    files = [
        file.path for file in compiled.report.outputs if compiled.path.parent / file.path != compiled.path
    ]
    weights = {}
    for name in files:
        entry = manifest.entry(name, embedded=False) if manifest else None
        segments = entry.segments if entry else ()
        weights[name] = tuple(range(s.offset, s.offset + s.length) for s in segments if s.is_weight)
    return Parts(
        name=compiled.path.name,
        proto=without_manifest(proto),
        payloads={name: (compiled.path.parent / name).read_bytes() for name in files},
        weights=weights,
    )


def without_manifest(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Take the manifest out of a model; return the model."""
    kept = [entry for entry in proto.metadata_props if entry.key != MANIFEST]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return proto


def context_nodes(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the EPContext nodes of a model's main graph."""
    return [node for node in proto.graph.node if node.op_type == "EPContext"]


def flipped(content: bytes, place: int) -> bytes:
    """Return the content with all bits of one byte turned over."""
    changed = bytearray(content)
    changed[place] ^= 0xFF
    return bytes(changed)


def places(parts: Parts, count: int, *, seed: int = 0) -> list[int]:
    """Return places all over the main payload that are not in a weight."""
    size, weights = len(parts.content), parts.weights[parts.main]
    found = np.random.default_rng(seed).integers(0, size, 4 * count)
    return [int(place) for place in found if not any(int(place) in weight for weight in weights)][:count]


def _parts(scene: Scene) -> Parts:
    return take_apart(scene.compile(scene.network))


def _refused(
    scene: Scene,
    given: Path | bytes,
    what: str,
    *,
    feeds: Any = None,
    wanted: Any = None,
    options: SessionOptions | None = None,
) -> None:
    """Raise CheckFailed unless a load refuses; with `wanted` a load that gives the right results is fine, too."""
    try:
        session = scene.session(given, options)
    except InvalidGraph as error:
        if len(error.message) < _SHORTEST_MESSAGE:
            raise CheckFailed(
                f"{what} is refused without saying why: {error.message!r}.", hint=_REFUSE
            ) from error
        return
    except EpctxError as error:
        raise CheckFailed(
            f"{what} ends in {type(error).__name__} instead of InvalidGraph: {error.message}", hint=_REFUSE
        ) from error
    with session:
        if wanted is None:
            raise CheckFailed(f"{what} is loaded as if nothing were wrong.", hint=_REFUSE)
        try:
            results = session.run(None, feeds)
        except EpctxError as error:
            raise CheckFailed(
                f"{what} is loaded, and only a run fails: {error.message}", hint=_REFUSE
            ) from error
    different = disagreement(results, wanted, tolerance=0.0)
    if different is not None:
        raise CheckFailed(
            f"{what} is loaded and gives wrong results: {different}.",
            hint="Put a digest of its content into the payload, and compare it in load_context.",
        )


def _refused_payload(scene: Scene, parts: Parts, content: bytes, what: str, **wanted: Any) -> None:
    _refused(scene, parts.write(scene.folder(), payload=content), what, **wanted)


def _right_results(scene: Scene, parts: Parts, model: SmallModel) -> dict[str, Any]:
    """Return inputs and the results of the intact payload."""
    feeds = model.feeds()
    return {"feeds": feeds, "wanted": scene.run(parts.write(scene.folder()), feeds)}


def _reasonable(scene: Scene, edit: Callable[[onnx.ModelProto], object], what: str) -> None:
    """Raise CheckFailed unless an edited model is refused, or loads and is right all the same."""
    parts = _parts(scene)
    proto = deepcopy(parts.proto)
    edit(proto)
    path = parts.write(scene.folder(), proto=proto)
    _refused(scene, path, what, **_right_results(scene, parts, scene.network))


@check("payloads", "a payload needs nothing but itself, also no manifest", needs=["export"])
def _without_manifest(scene: Scene) -> None:
    path = _parts(scene).write(scene.folder())
    scene.expect_run(scene.network, "a context model without a manifest", path)


def _cut(parts: Parts) -> Damages:
    yield "a payload cut in half", parts.content[: len(parts.content) // 2]


def _without_its_end(parts: Parts) -> Damages:
    yield "a payload without its last byte", parts.content[:-1]


def _only_head(parts: Parts) -> Damages:
    for length in (1, 4, HEAD_BYTES, 64):
        if length < len(parts.content):
            yield f"a payload of which {length} bytes are left", parts.content[:length]


def _empty(_parts: Parts) -> Damages:
    yield "an empty payload", b""


def _grown(parts: Parts) -> Damages:
    yield "a payload followed by zeros", parts.content + bytes(4096)
    yield "a payload followed by itself", parts.content * 2


def _other_bytes(parts: Parts, places: Iterable[int]) -> Damages:
    for place in places:
        what = f"a payload whose byte {place} of {len(parts.content)} is another one"
        yield what, flipped(parts.content, place)


def _other_head(parts: Parts) -> Damages:
    return _other_bytes(parts, range(min(HEAD_BYTES, len(parts.content))))


def _other_end(parts: Parts) -> Damages:
    size = len(parts.content)
    return _other_bytes(parts, range(max(0, size - HEAD_BYTES), size))


def _exchanged(parts: Parts) -> Damages:
    content, quarter = parts.content, len(parts.content) // 4
    turned = content[:quarter] + content[2 * quarter : 3 * quarter] + content[quarter : 2 * quarter]
    yield "a payload with two exchanged pieces", turned + content[3 * quarter :]


def _foreign(parts: Parts) -> Damages:
    """Yield what lies about under the name of a payload and is none."""
    size = len(parts.content)
    yield "a single byte", b"\x01"
    yield "zeros", bytes(size)
    yield "random bytes", np.random.default_rng(0).bytes(size)
    yield "a Git LFS pointer instead of the file", _LFS_POINTER
    yield "a web page", b"<!DOCTYPE html><html><body>404 Not Found</body></html>".ljust(size)
    yield "a ZIP archive", b"PK\x03\x04\x14\x00\x00\x00\x08\x00".ljust(size, b"\x00")
    yield "a program", b"\x7fELF\x02\x01\x01".ljust(size, b"\x00")


def _model(parts: Parts) -> Damages:
    yield "an ONNX model", parts.proto.SerializeToString()


_DAMAGES: tuple[tuple[str, Callable[[Parts], Damages], bool], ...] = (
    ("a payload cut in half is refused", _cut, False),
    ("a payload without its last byte is refused", _without_its_end, False),
    ("a payload of which only the head is left is refused", _only_head, False),
    ("an empty payload is refused", _empty, False),
    ("a payload that grew is refused or read as it was", _grown, True),
    ("a payload of another kind or version is refused: each byte of its head counts", _other_head, False),
    ("a payload whose last bytes are others is refused or does no harm", _other_end, True),
    ("a payload with two exchanged pieces is refused or does no harm", _exchanged, True),
    ("what is no payload at all is refused", _foreign, False),
    ("the context model itself in the place of its payload is refused", _model, False),
)
"""Title, what is put in the place of the largest payload, and whether a load may give the right results all the same."""


def _damaged(damages: Callable[[Parts], Damages], harmless: bool) -> CheckFunction:
    def function(scene: Scene) -> None:
        parts = _parts(scene)
        right = _right_results(scene, parts, scene.network) if harmless else {}
        for what, content in damages(parts):
            _refused_payload(scene, parts, content, what, **right)

    return function


for _title, _damages, _harmless in _DAMAGES:
    check("payloads", _title, needs=["export"])(_damaged(_damages, _harmless))


@check("payloads", "a payload damaged anywhere is refused or does no harm", needs=["export"])
def _anywhere(scene: Scene) -> None:
    parts = _parts(scene)
    right = _right_results(scene, parts, scene.network)
    for what, content in _other_bytes(parts, places(parts, _MANY * (4 if scene.full else 1))):
        _refused_payload(scene, parts, content, what, **right)


@check("payloads", "the payload of another model is refused", needs=["export", "several_partitions"])
def _of_another_model(scene: Scene) -> None:
    model = parted(scene.block, scene.barrier)
    mine = take_apart(scene.compile(model))
    other = take_apart(scene.compile(parted(scene.block, scene.barrier, 3, seed=1)))
    # Without weights its pieces may be equal to ours: then it is as good.
    right = _right_results(scene, mine, model)
    _refused_payload(scene, mine, other.content, "the payload of another model", **right)


@check(
    "payloads",
    "the payload of a model that differs in its weights alone is refused",
    needs=["export", "several_partitions"],
)
def _of_other_weights(scene: Scene) -> None:
    block = scene.block_where("with weights", weighted=True)
    mine, other = (take_apart(scene.compile(parted(block, scene.barrier, seed=seed))) for seed in (0, 1))
    _refused_payload(scene, mine, other.content, "the payload of a model with other weights")


@check("payloads", "a missing payload is refused", needs=["export"])
def _missing(scene: Scene) -> None:
    parts = _parts(scene)
    path = parts.write(scene.folder())
    (path.parent / parts.main).unlink()
    _refused(scene, path, "a missing payload")


@check("payloads", "what the core finds wrong with a payload passes through the EP", needs=["export"])
def _found_by_the_core(scene: Scene) -> None:
    compiled = scene.compile(scene.network)
    name = take_apart(compiled).main
    path = compiled.path.parent / name
    path.write_bytes(flipped(path.read_bytes(), 0))
    # In the hands of the EP: by default the core refuses it whatever the EP makes of it.
    lazily = scene.session_options({"ep.context_verify": "lazy"})
    _refused(scene, compiled.path, "a payload that is not the one of the manifest", options=lazily)


@check("payloads", "a node that asks for a graph that is not there is refused", needs=["export"])
def _unknown_graph(scene: Scene) -> None:
    def rename(proto: onnx.ModelProto) -> None:
        for node in context_nodes(proto):
            node.name += "_other"
            for attribute in node.attribute:
                if attribute.name == "partition_name":
                    attribute.s += b"_other"

    _reasonable(scene, rename, "a model whose nodes ask for graphs that the payload does not have")


@check("payloads", "a node without the EP's own attributes is refused or does no harm", needs=["export"])
def _without_attributes(scene: Scene) -> None:
    def strip(proto: onnx.ModelProto) -> None:
        for node in context_nodes(proto):
            kept = [attribute for attribute in node.attribute if attribute.name in CORE_ATTRIBUTES]
            del node.attribute[:]
            node.attribute.extend(kept)

    _reasonable(scene, strip, "a model whose nodes lack the EP's attributes")


@check("payloads", "the EP's own attributes with other values are refused or do no harm", needs=["export"])
def _other_attributes(scene: Scene) -> None:
    def change(proto: onnx.ModelProto) -> None:
        for node in context_nodes(proto):
            for attribute in node.attribute:
                if attribute.name in CORE_ATTRIBUTES:
                    continue
                attribute.s, attribute.i, attribute.f = b"\xff unknown", -1, float("nan")

    _reasonable(scene, change, "a model whose nodes have other values in the EP's attributes")


@check("payloads", "a damaged payload inside the model is refused", needs=["export", "embed"])
def _embedded(scene: Scene) -> None:
    compiled = scene.compile(scene.network, embed=True)
    whole = onnx.load(compiled.path)
    for what, damage in (
        ("cut in half", lambda content: content[: len(content) // 2]),
        ("with another first byte", lambda content: flipped(content, 0)),
    ):
        proto = deepcopy(whole)
        for node in context_nodes(without_manifest(proto)):
            for attribute in node.attribute:
                if attribute.name == "ep_cache_context" and attribute.s:
                    attribute.s = damage(attribute.s)
        path = scene.folder() / compiled.path.name
        path.write_bytes(proto.SerializeToString())
        _refused(scene, path, f"a payload inside the model {what}")


@check("payloads", "a damaged payload from the host's callback is refused", needs=["export"])
def _from_callback(scene: Scene) -> None:
    parts = _parts(scene)

    def read(name: str, buffer: Any) -> None:
        given = flipped(parts.content, 0) if name == parts.main else parts.payloads[name]
        buffer.allocate(len(given))
        buffer.write(given)

    options = scene.session_options()
    options.set_ep_context_data_read_func(read, max(map(len, parts.payloads.values())))
    _refused(scene, parts.proto.SerializeToString(), "a payload from the host's callback", options=options)


@check("payloads", "after a refusal the instance is shut down once, and nothing ran", needs=["export"])
def _after_a_refusal(scene: Scene) -> None:
    parts = _parts(scene)
    path = parts.write(scene.folder(), payload=flipped(parts.content, 0))
    watched, watch = scene.observed()
    with watched:
        _refused(watched, path, "a damaged payload")
    calls = [call.hook for call in watch.calls]
    failed = [call for call in watch.of("shutdown") if call.error is not None]
    if failed:
        raise CheckFailed(
            f"shutdown raised after a refused load: {failed[0].error!r}.",
            hint="shutdown is called whatever was done before; release what is there and no more.",
        )
    if "on_run_start" in calls or "compile" in calls:
        raise CheckFailed(f"a refused load went on to {calls}.")


@check("payloads", "after a refusal a good payload is loaded", needs=["export"])
def _good_after_bad(scene: Scene) -> None:
    parts = _parts(scene)
    _refused_payload(scene, parts, flipped(parts.content, 0), "a damaged payload")
    try:
        scene.expect_run(scene.network, "a good payload after a bad one", parts.write(scene.folder()))
    except EpctxError as error:
        raise CheckFailed(
            f"a good payload is not loaded any more after a bad one was refused: {error.message}",
            hint="Keep nothing of a failed load.",
        ) from error
