"""JSON Schemas of what commands print with `--json`, made from the dataclasses of their
results, and docs/json.md, made from the schemas; `make docs` writes them anew.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/json.md"
PACKAGES = {
    "epctx-cli": "epctx_cli.results",
    "epctx-files": "epctx_files.results",
    "epctx-cache": "epctx_cache.results",
    "epctx-conformance": "epctx_conformance.results",
    "epctx-report": "epctx_report.results",
    "epctx-bench": "documentation.bench_results",
    "epctx-batch": "epctx_batch.results",
}
"""Packages with results of commands, each with the module that describes them."""
BEGIN = "<!-- made by `make docs` -->\n"
_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean"}
_NULL = types.NoneType


def list_schemas() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the path of each file and its schema."""
    for package, module in PACKAGES.items():
        folder = ROOT / f"plugins/{package}/src/{package.replace('-', '_')}/schemas"
        for command, result in import_module(module).RESULTS.items():
            name = f"{command.replace(' ', '-')}.schema.json"
            yield folder / name, make_schema(command, result)


def make_schema(command: str, result: type) -> dict[str, Any]:
    """Return the schema of a command's result."""
    definitions: dict[str, Any] = {}
    whole = _describe_class(result, definitions)
    title = f"Result of epctx {command} --json"
    if command == "error":
        title = "Result of a command that fails, with --json"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "required": ["schema", *whole["required"]],
        "properties": {
            "schema": {"const": 1, "description": "Version of the family."},
            **whole["properties"],
        },
        "$defs": dict(sorted(definitions.items())),
    }


def _describe_class(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a dataclass; those that it refers to are added."""
    hints = get_type_hints(cls)
    meanings = {}
    for base in reversed(cls.__mro__):
        meanings |= read_attributes(base.__doc__ or "")

    properties = {}
    required = []
    for field in fields(cls):
        hint = hints[field.name]
        if field.default is None:
            # Left out, and never null.
            hint = Union[tuple(set(get_args(hint)) - {_NULL})]  # noqa: UP007
        else:
            required.append(field.name)
        words = meanings[field.name]
        described = {"description": f"{words[0].upper()}{words[1:]}"}
        properties[field.name] = _describe_type(hint, definitions) | described
    return {"type": "object", "required": required, "properties": properties}


def _describe_type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    parts = get_args(hint)
    if hint is Any:
        return {}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if is_dataclass(hint):
        name = hint.__name__
        if name not in definitions:
            definitions[name] = _describe_class(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if get_origin(hint) is Literal:
        return {"enum": list(parts)}

    below = [_describe_type(part, definitions) for part in parts if part is not _NULL]
    return _FORMS.get(get_origin(hint), _allow_null)(below)


def _allow_null(below: list[dict[str, Any]]) -> dict[str, Any]:
    (schema,) = below
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


_FORMS = {
    list: lambda below: {"type": "array", "items": below[0]},
    dict: lambda below: {"type": "object", "additionalProperties": below[1]},
    tuple: lambda below: {"type": "array", "prefixItems": below, "items": False},
}


def read_attributes(docstring: str) -> dict[str, str]:
    """Return the meaning of each attribute that a docstring describes."""
    _, _, section = docstring.partition("Attributes:\n")
    found = re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", section, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


# -- the page
# -------------------------------------------------------------------------------------


def make_tables() -> str:
    """Return a section for each command: key, type and meaning."""
    schemas = {path.name: schema for path, schema in list_schemas()}
    return "\n".join(
        section
        for name, schema in sorted(schemas.items())
        for section in _make_section(name.removesuffix(".schema.json"), schema)
    )


def _make_section(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name.replace('-', ' ')}\n"
    yield "| key | type | meaning |\n|---|---|---|"
    for key, kind, meaning in list_keys(schema):
        yield f"| `{key}` | {kind} | {meaning} |"
    yield ""


def list_keys(
    schema: Mapping[str, Any], *, repeat: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Yield each key with its type and meaning, and after it those of the object below
    it.

    Args:
        schema: of a command's result.
        repeat: True to list the keys of an object wherever it occurs, False for the
            first time only.
    """
    yield from _list_below("", schema, schema["$defs"], None if repeat else {})


def _list_below(
    prefix: str,
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    seen: dict[str, str] | None,
) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", [])
    for key, part in schema.get("properties", {}).items():
        shown = f"{prefix}{key}"
        mark = "" if key in required else "?"
        path, below, name = _find_object(shown, part)
        kind = _name_type(part)
        is_new = True
        if name is not None:
            below = definitions[name]
            first = path if seen is None else seen.setdefault(name, path)
            is_new = first == path
        yield (
            f"{shown}{mark}",
            kind if is_new else f"{kind}, as `{first}`",
            part.get("description", ""),
        )
        if is_new:
            yield from _list_below(f"{path}.", below, definitions, seen)


def _find_object(
    path: str, part: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any], str | None]:
    """Return the object in a list, a mapping or an alternative: its path, its schema,
    and its name among the definitions.
    """
    for choice in part.get("anyOf", part.get("oneOf", part.get("allOf", ()))):
        if choice.get("type") != "null":
            return _find_object(path, choice)
    if isinstance(part.get("items"), dict):
        return _find_object(f"{path}[]", part["items"])
    if isinstance(part.get("additionalProperties"), dict) and "properties" not in part:
        return _find_object(f"{path}.*", part["additionalProperties"])
    name = part["$ref"].rpartition("/")[2] if "$ref" in part else None
    return path, part, name


def _name_type(part: Mapping[str, Any]) -> str:
    """Return the type of a value in words."""
    choices = part.get("anyOf", part.get("oneOf", ()))
    # A schema may name null first or last.
    choices = sorted(choices, key=lambda choice: choice.get("type") == "null")
    values = [part["const"]] if "const" in part else part.get("enum")
    if choices:
        return " or ".join(map(_name_type, choices))
    if values:
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    if "$ref" in part or "allOf" in part:
        return "object"

    names = part.get("type", "any")
    named = names if isinstance(names, str) else " or ".join(names)
    if isinstance(part.get("items"), dict):
        return named.replace("array", f"array of {_name_type(part['items'])}")
    values = part.get("additionalProperties")
    if isinstance(values, dict) and "properties" not in part:
        return named.replace("object", f"object of {_name_type(values)}")
    return named


def fill_page(page: str) -> str:
    """Return the text of docs/json.md with the tables of the schemas."""
    before, begin, _ = page.partition(BEGIN)
    return f"{before}{begin}\n{make_tables()}"


if __name__ == "__main__":
    for path, schema in list_schemas():
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{json.dumps(schema, indent=2)}\n", "utf-8")
    PAGE.write_text(fill_page(PAGE.read_text("utf-8")), "utf-8")
