"""Template of `epctx plugins new`: a complete package with an EP that works.

Has the names that follow from one word, and the files under `ep/`. Knows nothing of the
command line.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from string import Template

from epctx_core import __version__
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.ext import known_ep

LONGEST = 40
_WORD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OWN_WORDS = frozenset({"core", "cpu", "sim"})
"""First words of names that are epctx's own."""
_OWN_NAMES = frozenset(
    {
        "batch", "bench", "blobs", "cache", "cli", "conformance", "files", "genai",
        "isolation", "kernels", "onnxruntime", "native-formats", "report",
    }
)  # fmt: skip
"""Names of further packages of epctx; that of `openvino` is reserved for its vendor."""
_ENDING = ".in"
"""Suffix of every file of the template, so that no tool reads it as its own."""
_HIDDEN = "dot-"


class _Text(Template):
    """Template with `%%{module}`, which has no meaning in Python, shell, TOML or
    YAML.
    """

    delimiter = "%%"


def create_plugin(
    word: str, parent: str | os.PathLike[str] = "."
) -> tuple[dict[str, str], Path, list[str]]:
    """Write a complete package into a new folder `epctx-<word>`.

    Args:
        word: a name such as `acme`; all others follow from it.
        parent: the folder around it; made if necessary.

    Returns:
        The names of its parts, its folder, and its files in order, relative to the
        folder.

    Raises:
        InvalidArgument: the word is not one that a package, a module and an EP can be
            named after, or it is taken.
        Fail: the folder exists, or cannot be written.
    """
    _refuse_bad_word(word)
    names = _derive_names(word)
    texts = _fill_templates(names)
    folder = Path(parent) / names["distribution"]
    try:
        folder.mkdir(parents=True)
        _write_files(folder, texts)
    except FileExistsError as error:
        raise Fail(
            f"{str(folder)!r} exists already.",
            path=folder,
            hint=(
                "Nothing was written. Choose another name, another folder (-o), or "
                "remove it."
            ),
        ) from error
    except OSError as error:
        raise Fail(
            f"{str(folder)!r} cannot be written: {error.strerror or error}.",
            path=folder,
            hint="Choose another folder with -o.",
        ) from error
    return names, folder, sorted(texts)


def _write_files(folder: Path, texts: dict[str, str]) -> None:
    """Write the files of a new folder, or else remove it."""
    try:
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            if text.startswith("#!"):
                path.chmod(path.stat().st_mode | 0o111)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fill_templates(names: dict[str, str]) -> dict[str, str]:
    """Return the files of a package by their paths, with names filled in."""
    root = Path(__file__).with_name("ep")
    texts = {}
    for path in sorted(root.rglob(f"*{_ENDING}")):
        name = path.relative_to(root).as_posix()
        target = re.sub(rf"(^|/){_HIDDEN}", r"\1.", name.removesuffix(_ENDING))
        target = target.replace("__module__", names["module"])
        texts[target] = _Text(path.read_text("utf-8")).substitute(names)
    return texts


def _derive_names(word: str) -> dict[str, str]:
    """Return the names in the files of the template: for `acme` epctx-acme, epctx_acme,
    Acme, ACME0001 and so on.
    """
    camel = "".join(map(str.capitalize, word.split("-")))
    major, minor = __version__.split(".")[:2]
    return {
        "word": word,
        "distribution": f"epctx-{word}",
        "module": f"epctx_{word}".replace("-", "_"),
        "camel": camel,
        "ep": f"{camel}ExecutionProvider",
        "provider": f"{camel}Provider",
        "magic": f"{camel.upper():_<4.4}0001",
        "core": f">={major}.{minor},<{major}.{int(minor) + 1}",
    }


def _refuse_bad_word(word: str) -> None:
    if word.lower().startswith(("epctx-", "epctx_")):
        raise InvalidArgument(
            f"the plugin name {word!r} begins with 'epctx', which is put before it "
            "anyway.",
            hint=f"Give {word[len('epctx-') :]!r}.",
        )
    if not _WORD.fullmatch(word) or len(word) > LONGEST:
        near = (
            re.sub(r"[^a-z0-9]+", "-", word.lower())
            .lstrip("-0123456789")[:LONGEST]
            .rstrip("-")
        )
        raise InvalidArgument(
            f"{word!r} cannot name a plugin: a name has 1 to {LONGEST} lower-case "
            "letters, digits and single dashes, and begins with a letter.",
            hint=f"Try {near!r}." if near else "Try one such as 'nimbus'.",
        )
    if word in _OWN_NAMES or word.partition("-")[0] in _OWN_WORDS:
        raise InvalidArgument(
            f"the plugin name {word!r} is epctx's own.",
            hint="Name it after your device or company.",
        )
    if (known := known_ep(word)) is not None:
        raise InvalidArgument(
            f"the name {known.reserved} and the EP name {known.name} are reserved for "
            f"{known.vendor}.",
            hint="Name it after your device or company.",
        )
