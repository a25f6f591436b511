"""Records of entries as a shared cache may give them: with the digests that they should
have, and wrong all the same.
"""

from __future__ import annotations

import dataclasses
import hashlib

import pytest
from epctx_cache.foreign import check_foreign_files, parse_foreign_record
from epctx_cache.key import key_of
from epctx_cache.store import CorruptEntryError, EntryFile, read_record

pytestmark = pytest.mark.internal

LIMIT = 1 << 30


@pytest.fixture
def folder(cache, model):
    """Folder of a sound entry: a binary and a model."""
    return cache.path(model).parent


@pytest.fixture
def record(folder):
    return read_record(folder)


def test_the_record_of_a_sound_entry_is_accepted(folder, record):
    parsed = parse_foreign_record(record.dump(), record.key, LIMIT)

    check_foreign_files(folder, parsed)

    assert parsed == record


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 7),
        ("created", "now"),
        ("seconds", -1.0),
        ("seconds", 1e308),
        ("seconds", float("nan")),
        ("created", 1e15),
        ("partitions", None),
        ("partitions", 1.5),
        ("partitions", 1 << 70),
        ("assignments", {"a": "b"}),
        ("assignments", {"a": 1.0}),
        ("ingredients", {"eps": [7]}),
        ("ingredients", {"eps": "x"}),
        ("ingredients", {}),
    ],
)
def test_a_record_with_fields_of_another_form_is_refused(record, field, value):
    bad = dataclasses.replace(record, **{field: value})
    bad = dataclasses.replace(bad, key=key_of(bad.ingredients))

    with pytest.raises(CorruptEntryError, match="fields of another form"):
        parse_foreign_record(bad.dump(), bad.key, LIMIT)


def test_a_record_of_another_key_is_refused(record):
    bad = dataclasses.replace(record, key="0" * 64)

    with pytest.raises(CorruptEntryError, match="its key is not that of its record"):
        parse_foreign_record(bad.dump(), bad.key, LIMIT)


def test_a_file_that_the_model_does_not_name_is_refused(folder, record):
    evil = EntryFile(
        path="evil.so", bytes=4, digest=hashlib.sha256(b"evil").hexdigest()
    )
    (folder / "evil.so").write_bytes(b"evil")
    bad = dataclasses.replace(record, files=(evil, *record.files))

    with pytest.raises(CorruptEntryError, match=r"does not name 'evil\.so'"):
        check_foreign_files(folder, bad)


@pytest.mark.parametrize("digest", ["nonsense", "0" * 64, ""])
def test_a_record_with_another_digest_of_a_binary_is_refused(folder, record, digest):
    binary, model = record.files
    bad = dataclasses.replace(
        record, files=(dataclasses.replace(binary, digest=digest), model)
    )

    with pytest.raises(CorruptEntryError, match=r"another digest|another form"):
        check_foreign_files(folder, parse_foreign_record(bad.dump(), bad.key, LIMIT))
