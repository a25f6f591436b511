"""The schemas of commands, and their page, are those of the code."""

from __future__ import annotations

import json

import jsonschema
import pytest
from documentation.schemas import (
    PAGE,
    fill_page,
    list_keys,
    list_schemas,
)

SCHEMAS = dict(list_schemas())


def test_the_files_of_the_schemas_are_made_from_the_dataclasses():
    for path, schema in SCHEMAS.items():
        assert json.loads(path.read_text("utf-8")) == schema, "run: make tables"


def test_each_schema_is_valid():
    for path in SCHEMAS:
        schema = json.loads(path.read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_page_has_every_key_as_the_schemas_have_it():
    page = PAGE.read_text("utf-8")

    assert fill_page(page) == page, "run: make tables"


@pytest.mark.parametrize("path", [*SCHEMAS], ids=lambda path: path.name)
def test_each_key_says_its_meaning(path):
    keys = list_keys(json.loads(path.read_text("utf-8")))

    assert [key for key, _, meaning in keys if not meaning] == []
