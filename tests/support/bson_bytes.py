"""BSON written by hand, as the tables of OpenVINO's containers have it."""

from __future__ import annotations

import struct


def element(kind, name, data=b""):
    """Return an element of a document."""
    return bytes([kind]) + name.encode() + b"\0" + data


def document(*elements):
    """Return a document of elements."""
    body = b"".join(elements) + b"\0"
    return struct.pack("<i", 4 + len(body)) + body


def text(name, value):
    """Return an element with a text."""
    data = value.encode() + b"\0"
    return element(0x02, name, struct.pack("<i", len(data)) + data)


def nested(name, *elements):
    """Return an element with a document."""
    return element(0x03, name, document(*elements))


def int32(name, value):
    """Return an element with a number of 32 bits."""
    return element(0x10, name, struct.pack("<i", value))
