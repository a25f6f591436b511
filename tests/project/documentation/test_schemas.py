"""The schemas of commands, and their page, are those of the code."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import jsonschema
import pytest
from documentation import schemas
from documentation.schemas import (
    PAGE,
    fill_page,
    list_keys,
    list_schemas,
    make_schema,
)

from epctx_core import CompileReport

if TYPE_CHECKING:
    from epctx_core.plugin import Severity

pytestmark = pytest.mark.internal

SCHEMAS = dict(list_schemas())


def test_the_files_of_the_schemas_are_made_from_the_dataclasses():
    for path, schema in SCHEMAS.items():
        assert json.loads(path.read_text("utf-8")) == schema, "run: make tables"


def test_each_schema_is_valid():
    for path in SCHEMAS:
        schema = json.loads(path.read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_page_has_each_command_with_its_keys():
    page = PAGE.read_text("utf-8")

    assert fill_page(page) == page, "run: make tables"


@pytest.mark.parametrize("path", [*SCHEMAS], ids=lambda path: path.name)
def test_each_key_says_its_meaning(path):
    keys = list_keys(json.loads(path.read_text("utf-8")))

    assert [key for key, _, meaning in keys if not meaning] == []


@dataclass(frozen=True, kw_only=True)
class Part:
    """Part of a result.

    Attributes:
        path: None for bytes.
        sizes: sizes.
    """

    path: Path | None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rest:
    """Rest of a result.

    Attributes:
        severity: severity.
        folder: left out where there is none.
    """

    severity: Severity
    folder: str | None = None


class Whole(Part):
    """Part that makes its JSON itself."""

    @property
    def count(self) -> int:
        """Number of sizes."""
        return len(self.sizes)

    def as_dict(self):
        """Return it as JSON."""
        raise NotImplementedError


def test_a_key_has_the_type_and_the_meaning_of_its_field():
    schema = make_schema("x", Part)

    assert schema["properties"]["path"] == {
        "type": ["string", "null"],
        "description": "Null for bytes.",
    }
    assert schema["properties"]["sizes"]["items"] == {"type": "integer"}
    assert schema["required"] == ["schema", "path", "sizes"]


def test_keys_of_several_parts_are_side_by_side():
    schema = make_schema("x", Part, Rest)

    assert [*schema["properties"]] == ["schema", "path", "sizes", "severity", "folder"]
    assert schema["properties"]["severity"]["enum"] == ["error", "warning", "info"]
    assert schema["required"] == ["schema", "path", "sizes", "severity"]


def test_keys_of_a_part_that_may_be_missing_are_not_required():
    schema = make_schema("x", Rest, Part | None)

    assert schema["required"] == ["schema", "severity"]
    assert "path" in schema["properties"]


def test_the_form_of_a_class_renames_adds_and_leaves_out_keys(monkeypatch):
    form = {"path": None, "sizes": "lengths", "count": float}
    monkeypatch.setattr(schemas, "FORMS", {Whole: form})

    schema = make_schema("x", Whole)

    assert schema["required"] == ["schema", "lengths", "count"]
    assert schema["properties"]["count"] == {
        "type": "number",
        "description": "Number of sizes.",
    }


def test_a_type_may_be_imported_for_type_checkers_only():
    schema = make_schema("x", CompileReport)

    assert schema["$defs"]["SkippedProvider"]["required"] == ["name", "reason", "hint"]


def test_an_object_may_have_the_keys_of_several_classes(monkeypatch):
    monkeypatch.setattr(
        schemas, "FORMS", {Whole: {"sizes": list[Annotated[Rest, Part]]}}
    )

    schema = make_schema("x", Whole)

    assert schema["$defs"]["Rest"]["required"] == ["path", "sizes", "severity"]


def test_two_classes_of_one_name_are_an_error():
    def make_part(hint):
        words = "Part.\n\n    Attributes:\n        key: key.\n"
        return make_dataclass("Part", [("key", hint)], namespace={"__doc__": words})

    whole = make_dataclass("Whole", [("a", make_part(int)), ("b", make_part(str))])
    whole.__doc__ = "Whole.\n\n    Attributes:\n        a: one.\n        b: two.\n"

    with pytest.raises(AssertionError, match="one name"):
        make_schema("one", whole)
