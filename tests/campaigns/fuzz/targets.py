"""Readers that the fuzzer gives changed files to, beside those of models: work on
files, EPContext nodes with receipts, OpenVINO's container, and records of a shared
cache.

Each target has seeds of its own, ways to change them, and what a host does with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import epctx_files
import onnx
from epctx_cache import key as keys
from epctx_cache import shared, store
from epctx_native_formats import bson
from epctx_native_formats import openvino as layout
from epctx_native_formats.openvino import decode_table, encode_head
from fuzz.cases import MANIFEST, Change, Seed, changed
from fuzz.seals import sealed_again
from fuzz.seeds import INDEX, REAL, write_seeds
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper
from support.mutations import NUMBERS, TEXTS, any_bytes, fields_of_a_model, json_text
from support.sim_eps import QNN, with_eps
from support.small_models import chain, finished, saved

import epctx_core as epctx
from epctx_core.context import digests

ENTRY = "entry.json"
"""Record of an entry in a shared cache; the files beside it are its blobs."""
CONTAINER = "net.bin"
_LARGEST_ENTRY = 1 << 28
NAMES = (
    "main_context", "embed_mode", "ep_cache_context", "source", "notes", "max_size",
    "partition_name", "hardware_architecture", "ep_sdk_version", "onnx_model_filename",
    "", "x",
)  # fmt: skip
"""Of attributes of EPContext nodes, those of vendors among them."""

Actions = dict[str, Callable[[], object]]


class Refused(epctx.NotFound):
    """A pull gave no entry, as it should for one that is damaged."""


class Unexpected(Exception):
    """What epctx did without any error, and must not."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader to fuzz.

    Attributes:
        write_seeds: writes a folder for each seed into one, and an index of their models.
        change: returns a seed's files after a few changes.
        actions: what a host does with a case, by name, in order; gets the model's path.
        prepare: called once in the process that has the cases.
    """

    write_seeds: Callable[[Path], None]
    change: Change
    actions: Callable[[Path], Actions]
    prepare: Callable[[], None] = lambda: None


# --- work on files --------------------------------------------------------------------


def _write_models(folder: Path) -> None:
    write_seeds(folder)
    models = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    del models["npz"]
    (folder / INDEX).write_text(json.dumps(models), encoding="utf-8")


def _verbs(path: Path) -> Actions:
    """Return all work on a model and on a second one that goes on from it."""
    other = path.with_name("other-head.onnx")
    saved(_relu(), other)
    source, end = _end_names(path.read_bytes())
    output = path.parent / "out" / "whole.onnx"
    sealed = path.with_name("other-sealed.onnx")
    before = _contents(path.parent)
    verbs: Actions = {
        "merge": lambda: epctx_files.merge(
            [path, other], output, joins={f"1.{end}": "2.other_x"}
        ),
        "merge behind": lambda: epctx_files.merge(
            [other, path], output, joins={"1.other_y": f"2.{source}"}
        ),
        "merge beside": lambda: epctx_files.merge([path, other], output),
        "extract": lambda: epctx_files.extract(path, output, outputs=[end]),
        "embed": lambda: epctx_files.embed(path, output),
        "externalize": lambda: epctx_files.externalize(path, output),
        "diff": lambda: epctx_files.diff(path, other, weights=True).as_dict(),
        "diff with itself": lambda: epctx_files.diff(path, path).as_dict(),
        "seal": lambda: epctx_files.seal_model(path, sealed, force=True),
    }

    def alone(verb: Callable[[], object]) -> None:
        try:
            verb()
            if output.exists():
                epctx.inspect_model(output)
        finally:
            shutil.rmtree(output.parent, ignore_errors=True)
            sealed.unlink(missing_ok=True)
        left = _contents(path.parent)
        if left != before:
            names = sorted(n for n in left | before if left.get(n) != before.get(n))
            raise Unexpected(f"these files are others or new: {names}")

    return {name: lambda verb=verb: alone(verb) for name, verb in verbs.items()}


def _relu() -> onnx.ModelProto:
    """Return a model of one node that takes a tensor of any shape."""
    values = [
        helper.make_tensor_value_info(f"other_{name}", TensorProto.FLOAT, None)
        for name in "xy"
    ]
    node = helper.make_node("Relu", ["other_x"], ["other_y"])
    return finished([node], values[:1], values[1:])


def _end_names(data: bytes) -> tuple[str, str]:
    """Return the names of a model's first input and last output."""
    try:
        graph = onnx.ModelProto.FromString(data).graph
        return graph.input[0].name, graph.output[-1].name
    except (DecodeError, IndexError):
        return "x", "y"


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- EPContext nodes, and receipts of what they name ----------------------------------


def _write_context_models(folder: Path) -> None:
    write_seeds(folder)
    models = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    kept = {
        name: model
        for name, model in models.items()
        if model.endswith(".onnx")
        and b"EPContext" in (folder / name / model).read_bytes()
    }
    (folder / INDEX).write_text(json.dumps(kept), encoding="utf-8")


def _change_nodes(random: Random, seed: Seed, donors: list[Seed]) -> dict[str, bytes]:
    """Change attributes of EPContext nodes; sometimes a payload, so that a receipt of
    the one before would be wrong.
    """
    files = dict(seed.files)
    try:
        model = onnx.ModelProto.FromString(files[seed.model])
    except DecodeError:
        return changed(random, seed, donors)
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    if not nodes or random.random() < 0.1:
        return changed(random, seed, donors)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _change_node(random, random.choice(nodes), random.choice(nodes))
    if random.random() < 0.8:
        kept = [entry for entry in model.metadata_props if entry.key != MANIFEST]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
    others = sorted(files.keys() - {seed.model})
    if others and random.random() < 0.3:
        name = random.choice(others)
        files[name] = any_bytes(random, files[name])
    files[seed.model] = model.SerializeToString()
    if random.random() < 0.5:
        files |= sealed_again(random, model, seed.model, files)
    return files


def _change_node(random: Random, node: onnx.NodeProto, donor: onnx.NodeProto) -> None:
    if not node.attribute:
        node.attribute.add(name="source", type=onnx.AttributeProto.STRING, s=b"QNN")
    attribute = random.choice(node.attribute)
    change = random.randrange(7)
    if change == 0:
        node.attribute.remove(attribute)
    elif change == 1:
        node.attribute.add().CopyFrom(attribute)
    elif change == 2:
        attribute.type = random.randrange(15)
    elif change == 3:
        attribute.i = random.choice((*NUMBERS, 0, 1, 1, 2))
    elif change == 4:
        text = random.choice(TEXTS).encode()
        attribute.s = random.choice((text, any_bytes(random, attribute.s[:4000])))
    elif change == 5 and donor.attribute:
        attribute.CopyFrom(random.choice(donor.attribute))
    else:
        attribute.name = random.choice(NAMES)


_times = count(1)


def _loads(path: Path) -> Actions:
    """Load with receipts of a sound state and of this one, and without any."""
    receipts = path.parent.with_name(f"{path.parent.name}.receipts")
    shutil.rmtree(receipts, ignore_errors=True)
    os.environ["EPCTX_RECEIPTS"] = str(receipts)
    # No two cases have files of one time, whose receipts would be each other's.
    for file in path.parent.iterdir():
        os.utime(file, (next(_times), next(_times)))
    said: list[str] = []

    def load(check: str) -> None:
        options = epctx.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry("ep.context_verify", check)
        try:
            epctx.InferenceSession(path, options).close()
            said.append("ok")
        except epctx.EpctxError as error:
            said.append(type(error).__name__)
            raise
        finally:
            if len(set(said)) > 1:
                raise Unexpected(f"{said} of loads with ep.context_verify={check}")

    def verify() -> None:
        report = epctx.verify_model(path)
        refused = said[-1] not in {"ok", "NotImplementedByProvider"}
        # A simulated EP says so of what the real one wrote, and loads none of it.
        codes = {finding.code for finding in report.findings}
        if report.ok and refused and "container-not-checked" not in codes:
            raise Unexpected(f"verify says ok, and a load ends with {said[-1]}")

    return {
        "inspect": lambda: json.dumps(epctx.inspect_model(path).as_dict()),
        "load": lambda: load("full"),
        "load by receipts": lambda: load("once"),
        "load again": lambda: load("once"),
        "verify": verify,
    }


def _leave_receipts() -> None:
    """Let a load leave receipts of files that were just written."""
    digests.SETTLED_NS = 0


# --- OpenVINO's container -------------------------------------------------------------


def _write_containers(folder: Path) -> None:
    head = layout.encode_head(
        layout.lay_out(
            {"producer": "p", "version": layout.TABLE_VERSION},
            {f"blob_{i}": {"size": 7 + i, "more": {"a": "b"}} for i in range(3)},
        )
    )
    real = (REAL / "ov_ctx0_OpenVINOExecutionProvider.bin").read_bytes()
    contents = {"real": real, "made": head + bytes(3 * layout.ALIGNMENT)}
    for name, content in contents.items():
        (folder / name).mkdir()
        (folder / name / CONTAINER).write_bytes(content)
    models = dict.fromkeys(contents, CONTAINER)
    (folder / INDEX).write_text(json.dumps(models), encoding="utf-8")


def _change_container(
    random: Random, seed: Seed, _donors: list[Seed]
) -> dict[str, bytes]:
    """Change the header, the bytes of the table, or what it says; mostly the header
    knows the new table and the length is a whole one.
    """
    data = seed.files[seed.model]
    start = 40
    size = int.from_bytes(data[32:start], "little")
    if random.random() < 0.15 or start + size > len(data):
        return {seed.model: any_bytes(random, data[:4096]) + data[4096:]}
    table = data[start : start + size]
    for _ in range(random.randint(1, 3)):
        table = random.choice((_any_table, any_bytes))(random, table)
    size = random.choice(NUMBERS) if random.random() < 0.05 else len(table)
    head = data[:32] + (size & (1 << 64) - 1).to_bytes(8, "little") + table
    content = head.ljust(layout.align(len(head)), b"\0") + data[layout.ALIGNMENT :]
    return {seed.model: content}


def _any_table(random: Random, table: bytes) -> bytes:
    try:
        fields = json.loads(json_text(random, json.dumps(bson.decode(table)).encode()))
        return bson.encode(fields)
    except Exception:  # noqa: BLE001 - not every JSON is a table
        return any_bytes(random, table)


def _readings(path: Path) -> Actions:
    def decode() -> None:
        with memoryview(path.read_bytes()) as content:
            table = decode_table(content, path.name)
        if _is_plain(asdict(table)) and table.entries:
            # Its own head begins as the file does, or at least says the same.
            first = min(entry["data_offset"] for entry in table.entries.values())
            head = encode_head(table)[: max(first, 40)]
            end = max(e["data_offset"] + e["size"] for e in table.entries.values())
            whole = head.ljust(layout.align(max(end, len(head))), b"\0")
            if len(encode_head(table)) <= first:
                again = decode_table(memoryview(whole), path.name)
                if again != table:
                    raise Unexpected(f"read as {table}, and written as {again}")

    return {"decode": decode}


def _is_plain(value: Any) -> bool:
    """Return whether the encoder has a value: documents, texts and integers."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return isinstance(value, str) or (
        type(value) is int and -(1 << 63) <= value < 1 << 63
    )


# --- records of a shared cache --------------------------------------------------------


def _write_entries(folder: Path) -> None:
    models = {}
    for name, operators in (("one", ["Relu", "Add"]), ("two", ["Add", "Sigmoid"])):
        work, storage = folder / f"{name}.work", folder / f"{name}.storage"
        work.mkdir()
        source = saved(chain(operators), work / "m.onnx")
        epctx.compile_cached(
            source, with_eps(QNN), work / "cache", shared_cache=storage.as_uri()
        )
        (entry,) = storage.rglob("*.json")
        (folder / name).mkdir()
        shutil.copy(entry, folder / name / ENTRY)
        for blob in (storage / "v1" / "blobs").glob("*/*"):
            shutil.copy(blob, folder / name / blob.name)
        shutil.rmtree(work)
        shutil.rmtree(storage)
        models[name] = ENTRY
    (folder / INDEX).write_text(json.dumps(models), encoding="utf-8")


def _change_entry(random: Random, seed: Seed, donors: list[Seed]) -> dict[str, bytes]:
    """Change the entry, its record under a right digest, or a blob that it knows by its
    new digest.
    """
    files = dict(seed.files)
    for _ in range(random.randint(1, 3)):
        try:
            way = random.choice((_any_record, _any_record, _any_record, _any_blob))
            files = way(random, files, random.choice(donors))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            files[seed.model] = json_text(random, files[seed.model])
        except IndexError:
            files[seed.model] = any_bytes(random, files[seed.model])
    return files


def _any_record(
    random: Random, files: dict[str, bytes], donor: Seed
) -> dict[str, bytes]:
    entry = json.loads(files[ENTRY])
    if random.random() < 0.1:
        entry["record"] = json.loads(donor.files[ENTRY])["record"]
    record = json.loads(json_text(random, entry["record"].encode()))
    _make_right(record, is_key_right=random.random() < 0.8)
    entry["record"] = json.dumps(record)
    return files | {ENTRY: json.dumps(entry).encode()}


def _make_right(record: dict[str, Any], *, is_key_right: bool) -> None:
    """Give a record the key of its ingredients, and its digest."""
    if is_key_right:
        record["key"] = keys.key_of(record["ingredients"])
    record.pop("record", None)
    record["record"] = store._digest(record)


def _any_blob(random: Random, files: dict[str, bytes], donor: Seed) -> dict[str, bytes]:
    entry = json.loads(files[ENTRY])
    record = json.loads(entry["record"])
    place = random.randrange(len(entry["blobs"]))
    content = files[entry["blobs"][place]]
    content = random.choice((any_bytes, fields_of_a_model))(random, content)
    digest = hashlib.sha256(content).hexdigest()
    entry["blobs"][place] = digest
    record["files"][place]["bytes"] = len(content)
    if record["files"][place]["path"].endswith(".onnx"):
        record["files"][place]["digest"] = digest
    _make_right(record, is_key_right=True)
    entry["record"] = json.dumps(record)
    return files | {ENTRY: json.dumps(entry).encode(), digest: content}


def _pulls(path: Path) -> Actions:
    """Put a case where a storage would have it, and pull it."""
    storage, folder = path.parent / "storage", path.parent / "folder"
    key = _find_key(path.read_bytes())
    entry = storage / "v1" / "entries" / key[:2] / f"{key}.json"
    entry.parent.mkdir(parents=True)
    shutil.copy(path, entry)
    for blob in list(path.parent.iterdir()):
        if store.is_key(blob.name):
            target = storage / "v1" / "blobs" / blob.name[:2] / blob.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(blob, target)
    folder.mkdir()
    before = sorted(path.parent.rglob("*"))

    def pull() -> None:
        shared._failed.clear()
        _blamed.clear()
        cache = shared.SharedCache(
            storage.as_uri(), cancel=_NeverCancelled(), progress=None
        )
        record = cache.pull(key, folder, _LARGEST_ENTRY)
        if _blamed:
            raise Unexpected("taken for a fault of the storage") from _blamed[0]
        written = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        if written != {file.path for file in getattr(record, "files", ())}:
            raise Unexpected(f"{sorted(written)} was written for {record}")
        if record is not None:
            store.check_whole(folder, record)
            record.dump()
        shutil.rmtree(folder)
        folder.mkdir()
        if sorted(path.parent.rglob("*")) != before:
            raise Unexpected("a file was written elsewhere, or removed")
        if record is None:
            raise Refused("no entry.")

    return {"pull": pull}


def _find_key(data: bytes) -> str:
    try:
        key = json.loads(json.loads(data)["record"])["key"]
        if store.is_key(key):
            return str(key)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return "0" * 64


class _NeverCancelled:
    requested = False

    def wait(self, seconds: float) -> bool:
        return False

    def raise_if_requested(self) -> None:
        pass


_blamed: list[Exception] = []
"""What the cache took for a fault of its storage; there is none in a folder."""


def _keep_what_is_blamed() -> None:
    def keep(error: Exception) -> str:
        _blamed.append(error)
        return str(error)

    shared._describe = keep


TARGETS = {
    "files": Target(write_seeds=_write_models, change=changed, actions=_verbs),
    "nodes": Target(
        write_seeds=_write_context_models,
        change=_change_nodes,
        actions=_loads,
        prepare=_leave_receipts,
    ),
    "container": Target(
        write_seeds=_write_containers, change=_change_container, actions=_readings
    ),
    "records": Target(
        write_seeds=_write_entries,
        change=_change_entry,
        actions=_pulls,
        prepare=_keep_what_is_blamed,
    ),
}
