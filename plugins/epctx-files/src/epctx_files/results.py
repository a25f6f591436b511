"""Results of commands on files: what `--json` prints.

The JSON Schemas in `schemas` are made from these dataclasses (`make docs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """File that a model names, or the model itself.

    Attributes:
        name: its name, relative to the model's folder.
        bytes: its length.
        how: a linked file is a hard link, a kept one lay there already.
    """

    name: str
    bytes: int
    how: Literal["written", "linked", "copied", "kept"]


@dataclass(frozen=True, kw_only=True)
class FilesResult:
    """Result of `epctx merge`, `extract`, `embed` and `externalize`.

    Attributes:
        model: the model that was written.
        files: it, and the files that it names.
        notes: sentences about what was left out or changed.
    """

    model: str
    files: list[FileFacts]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class DifferenceFacts:
    """Fact in which two models differ.

    Attributes:
        part: kind of the part.
        name: its name in the model, or `(order)` for the order of inputs or outputs.
        first: its form in the first model; null where that has none.
        second: its form in the second model; null where that has none.
    """

    part: Literal[
        "model",
        "opset",
        "input",
        "output",
        "node",
        "function",
        "weight",
        "payload",
        "EP",
        "metadata",
    ]
    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True, kw_only=True)
class DiffResult:
    """Result of `epctx diff`.

    Attributes:
        differences: differences in the order of the models' parts.
        notes: sentences about what was not compared.
    """

    differences: list[DifferenceFacts]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class SealedPayload:
    """Payload of a sealed model.

    Attributes:
        name: name of its file, or of its node if it is embedded.
        bytes: its length.
        digest: its root digest.
    """

    name: str
    bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class SealResult:
    """Result of `epctx seal`.

    Attributes:
        sealed: the sealed model.
        manifest: file of the manifest; null for a manifest in the model.
        written: false if the model had this seal already.
        payloads: payloads with their digests.
    """

    sealed: str
    manifest: str | None
    written: bool
    payloads: list[SealedPayload]
