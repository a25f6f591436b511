"""Cases by number: which seed, which of its files, and what is changed; the same number
is the same case everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeAlias

import onnx
from fuzz.payloads import npz, payload
from fuzz.seals import sealed_again
from fuzz.seeds import INDEX, NPZ
from google.protobuf.message import DecodeError
from support.mutations import (
    any_bytes,
    fields_of_a_model,
    json_text,
    transplant,
    unset_field,
    wire,
)

MANIFEST = "epctx.manifest"
_MOST_CHANGES = 3


@dataclass(frozen=True, kw_only=True)
class Seed:
    """A folder's files by name, and which of them is the model."""

    name: str
    model: str
    files: dict[str, bytes]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files to write into a folder, and which of them is the model."""

    number: int
    seed: str
    model: str
    files: dict[str, bytes]


Change: TypeAlias = Callable[[Random, Seed, list[Seed]], dict[str, bytes]]
"""Returns a seed's files after a few changes; parts may come from other seeds."""


def read_seeds(folder: Path) -> list[Seed]:
    """Read what `write_seeds` wrote."""
    models: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return [
        Seed(
            name=name,
            model=model,
            files={p.name: p.read_bytes() for p in (folder / name).iterdir()},
        )
        for name, model in sorted(models.items())
    ]


def case(seeds: list[Seed], number: int, change: Change | None = None) -> Case:
    """Return a case; without a way to change files, by `changed`."""
    random = Random(number)  # noqa: S311 - the same every time
    seed = seeds[number % len(seeds)]
    return Case(
        number=number,
        seed=seed.name,
        model=seed.model,
        files=(change or changed)(random, seed, seeds),
    )


def changed(random: Random, seed: Seed, donors: list[Seed]) -> dict[str, bytes]:
    """Return a seed's files after a few changes; parts of models come from the
    donors'.
    """
    files = dict(seed.files)
    others = sorted(files.keys() - {seed.model})
    for _ in range(random.randint(1, _MOST_CHANGES)):
        name = random.choice(others) if others and random.random() < 0.5 else seed.model
        donor = random.choice(donors)
        try:
            files[name] = _changed(random, name, files[name], donor.files[donor.model])
        except Exception:  # noqa: BLE001 - a change before has left nothing that can be taken apart
            files[name] = any_bytes(random, files[name])
    if others and random.random() < 0.7:
        files[seed.model] = _without_manifest(files[seed.model])
    model = _parsed(files[seed.model])
    if model is not None and random.random() < 0.6:
        files |= sealed_again(random, model, seed.model, files)
    return files


def packed(files: dict[str, bytes], model: str) -> bytes:
    """Return files as one sequence of bytes, the model first; see `unpacked`."""
    names = [model, *sorted(files.keys() - {model})]
    head = json.dumps([[name, len(files[name])] for name in names]).encode()
    return b"\n".join([head, b"".join(files[name] for name in names)])


def unpacked(data: bytes, name: str = "packed") -> Seed:
    """Return what `packed` gave as a seed; any other bytes are a model."""
    head, _, rest = data.partition(b"\n")
    files: dict[str, bytes] = {}
    try:
        for file, length in json.loads(head):
            files[Path(file).name], rest = rest[:length], rest[length:]
        return Seed(name=name, model=next(iter(files)), files=files)
    except (ValueError, TypeError, StopIteration, RecursionError):
        return Seed(name=name, model="m.onnx", files={"m.onnx": data})


def _changed(random: Random, name: str, data: bytes, donor: bytes) -> bytes:
    if name == NPZ:
        return npz(random, data)
    if not name.endswith(".onnx"):
        return payload(random, data)
    ways = (
        any_bytes,
        wire,
        wire,
        fields_of_a_model,
        fields_of_a_model,
        unset_field,
        lambda random, data: transplant(random, data, donor),
        _metadata,
        _embedded,
    )
    return random.choice(ways)(random, data)


def _metadata(random: Random, data: bytes) -> bytes:
    """Change what an entry of the metadata says."""
    model = _parsed(data)
    if model is None or not model.metadata_props:
        return fields_of_a_model(random, data)
    entry = random.choice(model.metadata_props)
    entry.value = json_text(random, entry.value.encode()).decode("utf-8", "replace")
    return model.SerializeToString()


def _embedded(random: Random, data: bytes) -> bytes:
    """Change a payload that is in the model; the manifest would give it away."""
    model = _parsed(data)
    found = [
        attribute
        for node in (model.graph.node if model is not None else ())
        for attribute in node.attribute
        if attribute.name == "ep_cache_context" and len(attribute.s) > 300
    ]
    if model is None or not found:
        return fields_of_a_model(random, data)
    attribute = random.choice(found)
    attribute.s = payload(random, attribute.s)
    return _without_manifest(model.SerializeToString())


def _without_manifest(data: bytes) -> bytes:
    model = _parsed(data)
    if model is None:
        return data
    kept = [entry for entry in model.metadata_props if entry.key != MANIFEST]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    return model.SerializeToString()


def _parsed(data: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        return None
