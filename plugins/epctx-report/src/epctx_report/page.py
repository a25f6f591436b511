"""The report page: one HTML file that holds its data, style and scripts, and requests
nothing.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import unicodedata
from collections.abc import Mapping
from importlib import resources
from typing import Any

# Inlined in this order: a file uses names of those before it when it is evaluated, and
# of any other only in functions.
SCRIPTS = (
    "text.js",
    "dom.js",
    "model.js",
    "layout.js",
    "colours.js",
    "scene.js",
    "drawing.js",
    "frame.js",
    "overview.js",
    "panel.js",
    "keyboard.js",
    "search.js",
    "sections.js",
    "print.js",
    "main.js",
)
TITLE_LIMIT = 200


def assemble(data: Mapping[str, Any]) -> str:
    """Return the HTML of the page that shows `data`; the same bytes for the same data.

    Raises:
        ValueError: a number of `data` is not finite.
    """
    layout, scripts, style = _read_dagre(), _join_scripts(), _read_asset("page.css")
    parts = {
        "policy": _make_policy([layout, scripts], style),
        "title": html.escape(_make_printable(str(data.get("title", "")))),
        "style": style,
        "data": _pack(data),
        "layout": layout,
        "scripts": scripts,
    }
    template = _read_asset("page.html")

    # In one pass: what is put in is never searched for further markers.
    return re.sub(r"\{\{(\w+)\}\}", lambda marker: parts[marker[1]], template)


def _pack(data: Mapping[str, Any]) -> str:
    # Escaped to ASCII: lone surrogates, which UTF-8 cannot express, come through.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    packed = gzip.compress(text.encode("ascii"), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def _make_policy(scripts: list[str], style: str) -> str:
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_hash_source, scripts))}",
            f"style-src {_hash_source(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            # Assigning text to innerHTML and its like fails, whoever does it.
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _join_scripts() -> str:
    """Return the page's own scripts in a function, so that they define no globals."""
    files = "\n".join(_read_asset(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{files}}})();\n'


def _read_dagre() -> str:
    """Return dagre with its licence; without the comment that names a source map, which
    developer tools would request.
    """
    code = _read_asset("dagre/dagre.min.js")
    code = re.sub(r"^//# sourceMappingURL=.*\n?", "", code, flags=re.MULTILINE)
    return f"/*! dagre\n{_read_asset('dagre/LICENSE')}*/\n{code}"


def _read_asset(name: str) -> str:
    # Not read_text: it would translate line ends, and digests are of the bytes.
    path = resources.files(__package__) / "assets"
    for part in name.split("/"):
        path /= part
    return path.read_bytes().decode()


def _make_printable(text: str) -> str:
    """Return a title without characters that HTML or UTF-8 do not allow, or that change
    the direction of text.
    """
    if len(text) > TITLE_LIMIT:
        half = TITLE_LIMIT // 2
        text = f"{text[:half]}…{text[-half:]}"
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) in hidden else char
        for char in text
    )
