"""Changes to bytes, to protobufs by their wire format and by their fields, and to JSON.

All chances come from a `Random`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import onnx
from google.protobuf.message import DecodeError, Message

Mutation: TypeAlias = Callable[[Random, bytes], bytes]

NUMBERS = (
    0, 1, -1, 2, 3, 7, 8, 127, 128, 255, 256, 1 << 15, 1 << 16, (1 << 24) + 1,
    (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 31),
    -(1 << 63),
)  # fmt: skip
TEXTS = (
    "", "x", "y", ".", "..", "../m.onnx", "/etc/passwd", "m_ctx.onnx", "a\0b", "\u202e",
    "x" * 5000, "0", "-1", "9" * 5000, "1e9", "EPContext", "com.microsoft", "ai.onnx",
    "If", "Loop", "QNNExecutionProvider", "{" * 3000, "location", "Constant",
    "ConstantOfShape", "Scan", "Expand",
)  # fmt: skip
_DEEP, _OFTEN = 150, 3000
_VARINT, _FIXED64, _NESTED, _FIXED32 = 0, 1, 2, 5
_MOST_VISITED = 3000


def any_bytes(random: Random, data: bytes) -> bytes:
    """Flip, set, cut, double, insert, move or truncate somewhere."""
    if not data:
        return random.randbytes(random.randrange(40))
    at, length = random.randrange(len(data)), 1 << random.randrange(10)
    piece = data[at : at + length]
    return random.choice(
        (
            lambda: (
                data[:at]
                + bytes([data[at] ^ 1 << random.randrange(8)])
                + data[at + 1 :]
            ),
            lambda: (
                data[:at]
                + random.choice((b"\0", b"\xff", b"\x80", b"\x7f"))
                + data[at + 1 :]
            ),
            lambda: data[:at] + data[at + length :],
            lambda: data[:at] + piece + data[at:],
            lambda: data[:at] + random.randbytes(length) + data[at:],
            lambda: data[:at],
            lambda: data[:at] + b"\xff" * len(piece) + data[at + length :],
            lambda: (
                data[: (other := random.randrange(len(data)))]
                + piece
                + data[other + len(piece) :]
            ),
        )
    )()


def wire(random: Random, data: bytes) -> bytes:
    """Change one field somewhere in a protobuf's tree, and correct the lengths around
    it.
    """
    fields = _fields(data)
    if not fields:
        return any_bytes(random, data)
    place = random.randrange(len(fields))
    number, kind, value = fields[place]
    if kind == _NESTED and random.random() < 0.75 and _fields(value):
        fields[place] = (number, kind, wire(random, value))
    else:
        _change_field(random, fields, place)
    return b"".join(_as_field(*field) for field in fields)


def smaller(random: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files with a field of a protobuf less, or a piece of other bytes."""
    name = random.choice(sorted(files))
    return files | {name: _without_a_field(random, files[name])}


def _without_a_field(random: Random, data: bytes) -> bytes:
    fields = _fields(data)
    if not fields:
        at, length = random.randrange(len(data) + 1), 1 << random.randrange(16)
        return data[:at] + data[at + length :]
    place = random.randrange(len(fields))
    number, kind, value = fields[place]
    if kind == _NESTED and random.random() < 0.6 and value:
        fields[place] = number, kind, _without_a_field(random, value)
    else:
        del fields[place]
    return b"".join(_as_field(*field) for field in fields)


def _change_field(
    random: Random, fields: list[tuple[int, int, Any]], place: int
) -> None:
    number, kind, value = field = fields[place]
    change = random.randrange(8)
    if change == 0:
        del fields[place]
    elif change == 1:
        fields.insert(random.randrange(len(fields) + 1), field)
    elif change == 2:
        fields[place : place + 1] = [field] * min(
            _OFTEN, 1 + (1 << 21) // max(1, _length(value))
        )
    elif change == 3:
        fields[place] = (
            random.choice((1, 2, 5, 7, 20, number + 1, (1 << 29) - 1)),
            kind,
            value,
        )
    elif change == 4:
        fields[place] = (number, _VARINT, random.choice(NUMBERS) & (1 << 64) - 1)
    elif change == 5:
        fields[place] = (number, _NESTED, _deep(number, value))
    elif change == 6:
        fields[place] = (number, _NESTED, random.randbytes(random.randrange(60)))
    else:
        other = random.choice(fields)
        fields[place] = (number, other[1], other[2])


def _deep(number: int, value: Any) -> bytes:
    content = value if isinstance(value, bytes) else b""
    for _ in range(_DEEP):
        content = _as_field(number, _NESTED, content)
    return content


def _length(value: Any) -> int:
    return len(value) if isinstance(value, bytes) else 8


def _fields(data: bytes) -> list[tuple[int, int, Any]]:
    """Return a message's fields; nothing if it is none."""
    found: list[tuple[int, int, Any]] = []
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            kind, value = tag & 7, b""
            if kind == _VARINT:
                number, at = _varint(data, at)
                found.append((tag >> 3, kind, number))
                continue
            if kind == _NESTED:
                size, at = _varint(data, at)
            elif kind in {_FIXED64, _FIXED32}:
                size = 8 if kind == _FIXED64 else 4
            else:
                return []
            value, at = data[at : at + size], at + size
            if len(value) < size:
                return []
            found.append((tag >> 3, kind, value))
    except IndexError:
        return []
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80 or shift > 63:
            return value, at


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def _as_field(number: int, kind: int, value: Any) -> bytes:
    if kind == _VARINT:
        return _as_varint(number << 3) + _as_varint(
            value if isinstance(value, int) else 0
        )
    content = value if isinstance(value, bytes) else bytes(8)
    if kind == _NESTED:
        return _as_varint(number << 3 | kind) + _as_varint(len(content)) + content
    return _as_varint(number << 3 | kind) + content


def fields_of_a_model(random: Random, data: bytes) -> bytes:
    """Change one field of an ONNX model by its meaning: numbers, text, kinds, copies of
    other parts.
    """
    model = _model(data)
    places = [] if model is None else _places(model)
    if model is None or not places:
        return any_bytes(random, data)
    # By kind of message first: else the many fields of common kinds would be all that
    # changes.
    kinds = sorted({message.DESCRIPTOR.name for message, _ in places})
    kind = random.choice(kinds)
    message, field = random.choice([p for p in places if p[0].DESCRIPTOR.name == kind])
    others = [m for m, _ in places if m.DESCRIPTOR is field.message_type]
    if field.type == field.TYPE_STRING and random.random() < 0.15:
        return _no_text(random, model, message, field)
    _change(random, message, field, others, _names(places))
    return model.SerializeToString()


def _places(model: Message) -> list[tuple[Message, Any]]:
    found: list[tuple[Message, Any]] = []
    pending: list[Message] = [model]
    while pending and len(found) < _MOST_VISITED:
        message = pending.pop()
        for field, value in message.ListFields():
            found.append((message, field))
            if field.message_type is not None:
                pending.extend(value if field.is_repeated else [value])
    return found


def unset_field(random: Random, data: bytes) -> bytes:
    """Set a field of an ONNX model that is not set; what is in a message is drawn,
    too.
    """
    model = _model(data)
    if model is None:
        return any_bytes(random, data)
    messages = _messages(model)
    message = random.choice(messages[random.choice(sorted(messages))])
    present = {field.name for field, _ in message.ListFields()}
    unset = [field for field in message.DESCRIPTOR.fields if field.name not in present]
    if not unset:
        return fields_of_a_model(random, data)
    _fill(random, message, random.choice(unset), _names(_places(model)), depth=2)
    return model.SerializeToString()


def _fill(
    random: Random, message: Message, field: Any, names: list[str], *, depth: int
) -> None:
    if field.message_type is None:
        value = _value(random, field, names)
        try:
            getattr(message, field.name).append(
                value
            ) if field.is_repeated else setattr(message, field.name, value)
        except (ValueError, TypeError):
            message.ClearField(field.name)
        return
    inner = getattr(message, field.name)
    made = inner.add() if field.is_repeated else inner
    made.SetInParent()
    for each in made.DESCRIPTOR.fields if depth else ():
        if random.random() < 0.5:
            _fill(random, made, each, names, depth=depth - 1)


def transplant(random: Random, data: bytes, donor: bytes) -> bytes:
    """Put a part of another model in the place of one of its kind, or beside it."""
    model, other = _model(data), _model(donor)
    if model is None or other is None:
        return any_bytes(random, data)
    own, foreign = _messages(model), _messages(other)
    kind = random.choice(
        sorted((own.keys() & foreign.keys()) - {"ModelProto"}) or ["ModelProto"]
    )
    target, source = random.choice(own[kind]), random.choice(foreign[kind])
    if random.random() < 0.5:
        target.Clear()
    target.MergeFrom(source)  # lists grow: both parts are there then
    return model.SerializeToString()


def _model(data: bytes) -> onnx.ModelProto | None:
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        return None


def _messages(model: Message) -> dict[str, list[Message]]:
    """Return a model's messages by kind, itself included."""
    found: dict[str, list[Message]] = {model.DESCRIPTOR.name: [model]}
    for message, field in _places(model):
        if field.message_type is not None:
            value = getattr(message, field.name)
            found.setdefault(field.message_type.name, []).extend(
                value if field.is_repeated else [value]
            )
    return {kind: messages for kind, messages in found.items() if messages}


def _names(places: list[tuple[Message, Any]]) -> list[str]:
    """Return texts that the model itself says: names that mean something there."""
    texts: list[str] = []
    for message, field in places[:300]:
        if field.type == field.TYPE_STRING:
            value = getattr(message, field.name)
            texts.extend([value] if isinstance(value, str) else value)
    return [text for text in texts if isinstance(text, str)] or [""]


def _change(
    random: Random,
    message: Message,
    field: Any,
    others: list[Message],
    names: list[str],
) -> None:
    name = field.name
    if field.message_type is not None:
        _change_messages(random, message, field, others)
        return
    value = _value(random, field, names)
    try:
        if not field.is_repeated:
            message.ClearField(name) if random.random() < 0.2 else setattr(
                message, name, value
            )
            return
        values = getattr(message, name)
        change = random.randrange(4)
        if change == 0 or not values:
            values.append(value)
        elif change == 1:
            del values[random.randrange(len(values))]
        elif change == 2:
            values.extend([value] * random.choice((1, 40, 400)))
        else:
            values[random.randrange(len(values))] = value
    except (ValueError, TypeError):
        message.ClearField(name)


def _value(random: Random, field: Any, names: list[str]) -> Any:
    if field.type == field.TYPE_STRING:
        return random.choice(TEXTS) if random.random() < 0.4 else random.choice(names)
    if field.type == field.TYPE_BYTES:
        return random.choice(
            (random.choice(TEXTS).encode(), random.randbytes(random.randrange(80)))
        )
    if field.type in {field.TYPE_FLOAT, field.TYPE_DOUBLE}:
        return random.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    if field.type == field.TYPE_ENUM:
        return random.randrange(30)
    bits = 31 if field.type == field.TYPE_INT32 else 63
    number = random.choice(NUMBERS)
    return number if -(1 << bits) <= number < 1 << bits else number % (1 << bits)


def _change_messages(
    random: Random, message: Message, field: Any, others: list[Message]
) -> None:
    name = field.name
    if not field.is_repeated:
        if others and random.random() < 0.6:
            copy = type(others[0]).FromString(random.choice(others).SerializeToString())
            message.ClearField(name)
            getattr(message, name).MergeFrom(copy)
        else:
            message.ClearField(name)
        return
    values = getattr(message, name)
    one = values[random.randrange(len(values))]
    change = random.randrange(5)
    if change == 0:
        values.remove(one)
    elif change == 1:
        values.add().CopyFrom(one)
    elif change == 2:
        kept = [type(v).FromString(v.SerializeToString()) for v in values]
        random.shuffle(kept)
        del values[:]
        values.extend(kept)
    elif others and change == 3:
        one.CopyFrom(type(one).FromString(random.choice(others).SerializeToString()))
    else:
        one.Clear()


def _no_text(random: Random, model: Message, message: Message, field: Any) -> bytes:
    """Return the model with bytes in a name that are no UTF-8, which no API would
    write.
    """
    mark = f"mark-{random.randrange(1 << 30)}"
    value = getattr(message, field.name)
    if isinstance(value, (str, bytes)):
        setattr(message, field.name, mark)
    else:
        value[random.randrange(len(value))] = mark
    return model.SerializeToString().replace(
        mark.encode(), b"\xff\xfe\x80" + mark.encode()[3:]
    )


def json_text(random: Random, text: bytes) -> bytes:
    """Change one value of a JSON text, or the text."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return any_bytes(random, text)
    if random.random() < 0.1:
        return random.choice(
            (
                b"[" * 100_000,
                b"",
                b"null",
                b"{}",
                b"1" * 6000,
                b'{"version":1}',
                text[: len(text) // 2],
            )
        )
    places = _json_places(content)
    if not places:
        return any_bytes(random, text)
    holder, key = random.choice(places)
    change = random.randrange(4)
    if change == 0:
        del holder[key]
    elif change == 1:
        other, place = random.choice(places)
        holder[key] = json.loads(json.dumps(other[place]))
    else:
        holder[key] = random.choice(
            (
                None,
                True,
                1.5,
                [],
                {},
                "",
                "..",
                "0" * 64,
                [[]],
                1e308,
                *NUMBERS,
                *TEXTS,
                -1,
                "9" * 19,
                [1] * 3000,
            )
        )
    return json.dumps(content).encode()


def _json_places(content: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    pending = [content]
    while pending:
        holder = pending.pop()
        keys = (
            list(holder)
            if isinstance(holder, dict)
            else range(len(holder))
            if isinstance(holder, list)
            else ()
        )
        for key in keys:
            found.append((holder, key))
            pending.append(holder[key])
    return found
