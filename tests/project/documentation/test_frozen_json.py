"""The JSON of commands keeps the keys and types that were frozen."""

from __future__ import annotations

import copy
import json

import pytest
from documentation.copy_schemas import FROZEN, find_schemas
from documentation.schemas import list_keys

pytestmark = pytest.mark.internal

NAMES = sorted(path.name for path in FROZEN.glob("*.schema.json"))


def list_changes(frozen, now):
    """Return a sentence for each frozen key that programs would miss."""
    before = {key: kind for key, kind, _ in list_keys(frozen)}
    after = {key: kind for key, kind, _ in list_keys(now)}
    advice = "Keep it, or raise the version of the family: see tests/data/frozen_json_1/README.md."
    changes = []
    for key, kind in before.items():
        name = key.removesuffix("?")
        found = after.get(name, after.get(key))
        if found is None:
            why = "may be missing" if f"{name}?" in after else "is gone"
            changes.append(f"the key {name!r} {why}. {advice}")
        elif found != kind:
            changes.append(f"the key {name!r} was {kind} and is {found}. {advice}")
    return changes


@pytest.mark.parametrize("name", NAMES)
def test_no_key_goes_or_changes_within_a_version(name):
    schemas = find_schemas()

    assert name in schemas, f"{name} is gone: see tests/data/frozen_json_1/README.md"
    frozen = json.loads((FROZEN / name).read_text("utf-8"))
    now = json.loads(schemas[name].read_text("utf-8"))
    assert list_changes(frozen, now) == []


def test_each_schema_has_a_frozen_copy():
    missing = sorted(set(find_schemas()) - set(NAMES))

    assert missing == [], "run: python tests/project/documentation/copy_schemas.py"


def test_a_new_key_is_no_change_and_a_lost_one_is():
    frozen = json.loads((FROZEN / "verify.schema.json").read_text("utf-8"))
    now = copy.deepcopy(frozen)
    now["properties"]["new"] = {"type": "string"}
    assert list_changes(frozen, now) == []

    now["required"].remove("ok")
    now["properties"]["nodes"]["type"] = "number"
    del now["$defs"]["PayloadFacts"]["properties"]["bytes"]

    assert [change.partition(". ")[0] for change in list_changes(frozen, now)] == [
        "the key 'ok' may be missing",
        "the key 'nodes' was integer and is number",
        "the key 'payloads[].bytes' is gone",
    ]
