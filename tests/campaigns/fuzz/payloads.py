"""Changes to the payloads of the simulated EPs and to archives, with their digests made
right again.

A change that a digest gives away is refused before anything else is looked at. Who
sends a hostile payload makes its digests right, so mostly that is done here, too.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from random import Random

import numpy as np
from epctx_sim_sdk import container as layout
from epctx_sim_vitisai import archive, tar
from support.mutations import NUMBERS, any_bytes, fields_of_a_model, json_text, wire

_MOST = (1 << 64) - 1


def payload(random: Random, data: bytes) -> bytes:
    """Change a payload of any kind."""
    if random.random() < 0.2:
        return any_bytes(random, data)
    if data.startswith(layout.head()) and data.endswith(layout.END):
        return container(random, data)
    if tar.looks_like_tar(memoryview(data)):
        return _archive(random, data)
    return any_bytes(random, data)


def container(random: Random, data: bytes) -> bytes:
    """Change tables, graphs, weights or the foot of a container of the simulated
    SDK.
    """
    weights, structures, tables = split(data)
    change = random.randrange(5)
    if change <= 1:
        tables = json_text(random, tables)
    elif change <= 3:
        structures, tables = _other_graph(random, structures, tables)
    else:
        weights = weights[:16] + any_bytes(random, weights[16:])
    return _packed(random, weights, structures, tables, honest=random.random() < 0.9)


def split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a container's weights (with its head), structures and tables."""
    foot = layout.Foot.unpack(memoryview(data)[-layout.FOOT_SIZE :])
    tables = foot.structures_start + foot.structures
    return (
        data[: foot.structures_start],
        data[foot.structures_start : tables],
        data[tables : -layout.FOOT_SIZE],
    )


def _with_facts(tables: bytes, made_by: dict[str, str]) -> bytes:
    try:
        content = json.loads(tables)
        content["made_by"].update(made_by)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return tables
    return json.dumps(content).encode()


def _other_graph(
    random: Random, structures: bytes, tables: bytes
) -> tuple[bytes, bytes]:
    """Change one graph; it goes behind the others, so that their places stay."""
    content = json.loads(tables)
    place = random.choice(content["structures"])
    graph = structures[place["offset"] : place["offset"] + place["length"]]
    graph = random.choice((fields_of_a_model, wire))(random, graph)
    place["offset"], place["length"] = len(structures), len(graph)
    return structures + graph, json.dumps(content).encode()


def _packed(
    random: Random, weights: bytes, structures: bytes, tables: bytes, *, honest: bool
) -> bytes:
    wrong = {} if honest else {random.randrange(4): random.choice(NUMBERS) & _MOST}
    return joined(weights, structures, tables, wrong)


def joined(
    weights: bytes, structures: bytes, tables: bytes, wrong: Mapping[int, int]
) -> bytes:
    """Return a container whose digest is right; `wrong` are sizes that its foot says,
    by their place there.
    """
    body = structures + tables
    sizes = [
        len(weights),
        len(structures),
        len(tables),
        len(weights) + len(body) + layout.FOOT_SIZE,
    ]
    start, inner, table, total = (
        wrong.get(place, size) for place, size in enumerate(sizes)
    )
    foot = layout.Foot(
        structures_start=start, structures=inner, tables=table, total=total
    )
    return weights + body + foot.pack(body)


def _archive(random: Random, data: bytes) -> bytes:
    """Change an archive of the simulated VitisAI: its description, its container, or a
    header.
    """
    try:
        context, compiled = members(data)
    except tar.BadTarError:
        return any_bytes(random, data)
    change = random.randrange(4)
    if change == 0:
        return _with_header(random, data)
    if change == 1:
        return archived(json_text(random, context), compiled)
    compiled = container(random, compiled)
    return _tar((archive.CONTEXT, context), (archive.COMPILED, compiled))


def members(data: bytes) -> tuple[bytes, bytes]:
    """Return what an archive says of itself, and the container in it."""
    found = tar.members(memoryview(data), archive.MEMBERS)
    return bytes(found[archive.CONTEXT]), bytes(found[archive.COMPILED])


def archived(context: bytes, compiled: bytes) -> bytes:
    """Return an archive whose container knows what the archive says of itself."""
    weights, structures, tables = split(compiled)
    tables = _with_facts(
        tables, {archive.CONTEXT_FACT: hashlib.sha256(context).hexdigest()}
    )
    compiled = joined(weights, structures, tables, {})
    return _tar((archive.CONTEXT, context), (archive.COMPILED, compiled))


def _tar(*files: tuple[str, bytes]) -> bytes:
    return (
        b"".join(tar.header(n, len(c)) + c + tar.padding(len(c)) for n, c in files)
        + tar.END
    )


def _with_header(random: Random, data: bytes) -> bytes:
    """Change one field of the first header and make its sum right."""
    field, values = random.choice(
        (
            (
                slice(0, 100),
                (b"/etc/passwd", b"../../x", b"a\\..\\b", b"C:x", b"\xff\xfe", b""),
            ),
            (
                slice(124, 136),
                (
                    b"77777777777\0",
                    b"\x80" + b"\xff" * 11,
                    b"\xff" * 12,
                    b"-0000000001\0",
                    b"0" * 12,
                ),
            ),
            (
                slice(156, 157),
                (b"0", b"1", b"2", b"3", b"5", b"6", b"g", b"x", b"L", b"S", b"\0"),
            ),
            (slice(157, 257), (b"/etc/passwd", b"..")),
            (slice(345, 500), (b"..", b"/")),
        )
    )
    block = bytearray(data[: tar.BLOCK])
    block[field] = random.choice(values).ljust(field.stop - field.start, b"\0")
    block[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(block))[0]
    return bytes(block) + data[tar.BLOCK :]


def npz(random: Random, data: bytes) -> bytes:
    """Change a `.npz` file: its bytes, or one array's header under a right checksum."""
    if random.random() < 0.4:
        return any_bytes(random, data)
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as old,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            inside = random.choice(("", "", "../", "/")) + name
            new.writestr(inside, _array(random, old.read(name)))
    return out.getvalue()


def _array(random: Random, content: bytes) -> bytes:
    change = random.randrange(4)
    if change == 0:
        return any_bytes(random, content)
    if change == 1:
        return bytes(1 << 24)
    shape = tuple(
        random.choice((*NUMBERS, 2)) for _ in range(random.choice((0, 1, 2, 40, 70)))
    )
    kind = random.choice(
        (
            "<f4",
            "|O",
            "<U1000000000",
            "|V8",
            "|S0",
            "<M8[s]",
            ">i8",
            "?",
            "(3,)f4",
            "f4,f4",
        )
    )
    header = repr(
        {"descr": kind, "fortran_order": random.random() < 0.3, "shape": shape}
    ).encode()
    header = random.choice(
        (header, header, b"{" * 3000, b"__import__('os').getpid()", header[:-1])
    )
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return (
        np.lib.format.magic(1, 0)
        + len(header).to_bytes(2, "little")
        + header
        + content[128:]
    )
