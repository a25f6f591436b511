"""JSON Schemas of what commands print with `--json`, made from the dataclasses of their
results, and json.md, made from the schemas; `make tables` writes them anew.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import EnumType
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from documentation.forms import FORMS
from documentation.results import PACKAGES
from support.folders import ROOT
from support.pages import FILES

PAGE = FILES["json.md"]
BEGIN = "<!-- made by `make tables` -->\n"
_SIMPLE = {
    str: "string",
    Path: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
}
_NULL = types.NoneType
_UNIONS = (Union, types.UnionType)


def list_schemas() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the path of each file and its schema."""
    for package, results in PACKAGES.items():
        folder = ROOT / f"plugins/{package}/src/{package.replace('-', '_')}/schemas"
        for command, parts in results.items():
            name = f"{command.replace(' ', '-')}.schema.json"
            yield folder / name, make_schema(command, *parts)


def make_schema(command: str, *parts: Any) -> dict[str, Any]:
    """Return the schema of a command's result.

    Args:
        command: the command.
        parts: dataclasses whose keys are side by side; of a key of several, the last
            counts. `Class | None` is a part that may be missing.
    """
    definitions = _Definitions()
    properties = {"schema": {"const": 1, "description": "Version of the family."}}
    required = {"schema": None}
    for part in parts:
        is_optional = get_origin(part) in _UNIONS
        cls = get_args(part)[0] if is_optional else part
        whole = _describe_class(cls, definitions)
        properties |= whole["properties"]
        required |= {} if is_optional else dict.fromkeys(whole["required"])

    title = f"Result of epctx {command} --json"
    if command == "error":
        title = "Result of a command that fails, with --json"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "type": "object",
        "required": [*required],
        "properties": properties,
        "$defs": dict(sorted(definitions.items())),
    }


@dataclass(frozen=True, kw_only=True)
class _Key:
    """Key of an object.

    Attributes:
        name: its name.
        hint: type of its value.
        meaning: its meaning.
        is_required: False if it is left out where there is nothing to say.
    """

    name: str
    hint: Any
    meaning: str
    is_required: bool = True


def _describe_class(cls: type, definitions: _Definitions) -> dict[str, Any]:
    """Return the schema of a dataclass; those that it refers to are added."""
    properties = {}
    keys = [*_list_keys_of_fields(cls), *_list_keys_of_properties(cls)]
    for key in keys:
        # Docstrings of Python's names describe JSON, too.
        words = re.sub(r"\bNone\b", "null", key.meaning)
        words = re.sub(r"\b(True|False)\b", lambda found: found[0].lower(), words)
        described = {"description": f"{words[0].upper()}{words[1:]}"}
        properties[key.name] = _describe_type(key.hint, definitions) | described
    required = [key.name for key in keys if key.is_required]
    return {"type": "object", "required": required, "properties": properties}


def _list_keys_of_fields(cls: type) -> Iterator[_Key]:
    """Yield the keys that are fields, in the form of the class."""
    names: Any = _NamesForTypes(cls)
    hints = get_type_hints(cls, localns=names, include_extras=True)
    meanings: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        meanings |= read_attributes(base.__doc__ or "")

    form = _get_form(cls)
    for field in fields(cls):
        shown = form.get(field.name, field.name)
        if shown is None:
            continue
        hint = hints[field.name] if isinstance(shown, str) else shown
        # What makes its JSON itself has every key.
        is_required = field.default is not None or hasattr(cls, "as_dict")
        if not is_required:
            # Left out, and never null.
            hint = Union[tuple(set(get_args(hint)) - {_NULL})]  # noqa: UP007
        yield _Key(
            name=shown if isinstance(shown, str) else field.name,
            hint=hint,
            meaning=meanings[field.name],
            is_required=is_required,
        )


def _list_keys_of_properties(cls: type) -> Iterator[_Key]:
    """Yield the keys that are properties in the form of the class."""
    names = {field.name for field in fields(cls)}
    for name, shown in _get_form(cls).items():
        if name not in names:
            method = getattr(cls, name).fget
            meaning = " ".join(method.__doc__.split())
            if isinstance(shown, str):
                hints = get_type_hints(method, localns=_NamesForTypes(cls))  # type: ignore[arg-type]
                yield _Key(name=shown, hint=hints["return"], meaning=meaning)
            else:
                yield _Key(name=name, hint=shown, meaning=meaning)


def _get_form(cls: type) -> Mapping[str, Any]:
    return next((FORMS[base] for base in cls.__mro__ if base in FORMS), {})


class _NamesForTypes(Mapping[str, Any]):
    """Names that the modules of a class import for type checkers only."""

    def __init__(self, cls: type) -> None:
        self._origins: dict[str, tuple[str, str]] = {}
        for base in cls.__mro__:
            self._origins |= _find_imports_for_types(base.__module__)

    def __getitem__(self, name: str) -> Any:
        module, origin = self._origins[name]
        return getattr(import_module(module), origin)

    def __iter__(self) -> Iterator[str]:
        return iter(self._origins)

    def __len__(self) -> int:
        return len(self._origins)


@cache
def _find_imports_for_types(name: str) -> dict[str, tuple[str, str]]:
    """Return the module and the name there of each name that a module imports under
    `if TYPE_CHECKING:`.
    """
    path = getattr(sys.modules[name], "__file__", None)
    if path is None:
        return {}
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for block in ast.parse(Path(path).read_text("utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _describe_type(hint: Any, definitions: _Definitions) -> dict[str, Any]:
    if hint is Any or hint in _SIMPLE:
        return {} if hint is Any else {"type": _SIMPLE[hint]}
    if is_dataclass(hint):
        name = definitions.name(hint)
        if name not in definitions:
            definitions[name] = _describe_class(hint, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if isinstance(hint, EnumType):
        return {"enum": [member.value for member in hint]}
    if get_origin(hint) is Annotated:
        return _describe_annotated(hint, definitions)
    return _describe_container(hint, definitions)


def _describe_annotated(hint: Any, definitions: _Definitions) -> dict[str, Any]:
    """Return the schema of an object with the keys of several classes."""
    cls, base = get_args(hint)
    whole = _describe_class(base, definitions)
    more = _describe_class(cls, definitions)
    name = definitions.name(cls)
    definitions[name] = {
        "type": "object",
        "required": [*dict.fromkeys([*whole["required"], *more["required"]])],
        "properties": whole["properties"] | more["properties"],
    }
    return {"$ref": f"#/$defs/{name}"}


class _Definitions(dict[str, Any]):
    """Schemas of the classes that a schema refers to, by name."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, type] = {}

    def name(self, cls: type) -> str:
        """Return the name of a class; a second class of one name is an error."""
        owner = self._owners.setdefault(cls.__name__, cls)
        assert owner is cls, f"{owner} and {cls} have one name in a schema"
        return cls.__name__


def _describe_container(hint: Any, definitions: _Definitions) -> dict[str, Any]:
    """Return the schema of a type with types in brackets."""
    parts = get_args(hint)

    below = [
        _describe_type(part, definitions)
        for part in parts
        if part not in (_NULL, Ellipsis)
    ]
    if get_origin(hint) is tuple and Ellipsis not in parts:
        return {"type": "array", "prefixItems": below, "items": False}
    return _FORMS.get(get_origin(hint), _allow_null)(below)


def _allow_null(below: list[dict[str, Any]]) -> dict[str, Any]:
    (schema,) = below
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _describe_list(below: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "array", "items": below[0]}


def _describe_mapping(below: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": below[1]}


_FORMS = {
    list: _describe_list,
    tuple: _describe_list,
    Sequence: _describe_list,
    dict: _describe_mapping,
    Mapping: _describe_mapping,
}


def read_attributes(docstring: str) -> dict[str, str]:
    """Return the meaning of each attribute that a docstring describes, under
    `Attributes:` or, of a class that users make, `Args:`.
    """
    _, _, section = re.sub("    Args:", "    Attributes:", docstring).partition(
        "Attributes:\n"
    )
    found = re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", section, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in found}


# -- the page
# -------------------------------------------------------------------------------------


def make_table() -> str:
    """Return a row for each schema: the command, its package, and the keys of its
    result.
    """
    rows = [
        f"| `{_name_command(path)}` | {path.parents[3].name} | {_name_keys(schema)} |"
        for path, schema in list_schemas()
    ]
    return "\n".join(["| command | package | keys |", "|---|---|---|", *rows, ""])


def _name_command(path: Path) -> str:
    return path.name.removesuffix(".schema.json").replace("-", " ")


def _name_keys(schema: Mapping[str, Any]) -> str:
    keys = [key for key in schema["properties"] if key != "schema"]
    optional = set(keys) - set(schema["required"])
    return ", ".join(f"`{key}{'?' * (key in optional)}`" for key in keys)


def list_keys(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each key of a command's result with its type and meaning, and after it
    those of the object below it.
    """
    yield from _list_below("", schema, schema["$defs"])


def _list_below(
    prefix: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    required = schema.get("required", [])
    for key, part in schema.get("properties", {}).items():
        shown = f"{prefix}{key}"
        mark = "" if key in required else "?"
        path, below, name = _find_object(shown, part)

        yield f"{shown}{mark}", _name_type(part), part.get("description", "")
        yield from _list_below(f"{path}.", definitions.get(name, below), definitions)


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
    """Return the text of json.md with the table of the schemas."""
    before, begin, _ = page.partition(BEGIN)
    return f"{before}{begin}\n{make_table()}"


if __name__ == "__main__":
    for path, schema in list_schemas():
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{json.dumps(schema, indent=2)}\n", "utf-8")
    PAGE.write_text(fill_page(PAGE.read_text("utf-8")), "utf-8")
