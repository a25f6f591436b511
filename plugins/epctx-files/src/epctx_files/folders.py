"""Digest of a folder: one small file that ties the files of one build together.

It is an in-toto statement in the form that OpenSSF Model Signing signs, without a
signature. Signing and the check of signatures are the work of that library, by its
command line or as a host configures it; the files that are signed are compared here, so
that receipts count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epctx_core import __version__, inspect_model
from epctx_core.errors import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    convert_errors,
)
from epctx_core.ext import (
    ModelFolder,
    PayloadEntry,
    Publication,
    parse_json,
    read_small_file,
)
from epctx_files.bundle import PathInput, require_path

if TYPE_CHECKING:
    from model_signing import verifying

DIGEST: Final = "folder.epctx.json"
"""Name of the file with the digests of a folder."""
SIGNATURE: Final = "model.sig"
"""Name of a signature, as Model Signing has it."""

_IGNORED = (DIGEST, SIGNATURE, ".git", ".gitattributes", ".github", ".gitignore")
"""Names that a digest leaves out; Model Signing leaves out those of git, too."""
_STATE = ".epctx-"
"""Beginning of the names of staging folders and locks."""
_MOST_EARLIER = 1024
"""Digests of earlier builds that are kept."""


@dataclass(frozen=True, kw_only=True)
class SealedFile:
    """File of a sealed folder.

    Attributes:
        name: its name relative to the folder, with "/" between its parts.
        digest: its digest (hex).
        size: its length in bytes.
        algorithm: that of the digest.
    """

    name: str
    digest: str
    size: int
    algorithm: str = "sha256"


@dataclass(frozen=True, kw_only=True)
class SealedFolder:
    """Digest of a folder, and result of `seal_folder`.

    Attributes:
        purpose: use of the folder, in the words of the host.
        tool: the program that made the digest, with its version.
        compiled_by: EPs that compiled context models of the folder, each with its
            distribution and version, as the manifests say.
        earlier: digests of files of earlier builds, those of the last build first.
        files: the files, by name.
    """

    purpose: str
    tool: str
    compiled_by: list[str]
    earlier: list[str]
    files: list[SealedFile]


_NOTHING = SealedFolder(purpose="", tool="", compiled_by=[], earlier=[], files=[])


@dataclass(frozen=True, kw_only=True)
class FileFinding:
    """File that is not as the digest of its folder says.

    Attributes:
        name: its name relative to the folder.
        problem: `missing`, `added`, or for a file with other content: `older`, that of
            an earlier build; `newer`, written after the digest; else `foreign`.
    """

    name: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """Result of `verify_folder`.

    Attributes:
        sealed: the digest of the folder; an empty one if it is signed alone.
        signed: true if a signature was checked, and is right.
        checked: number of files that the digest or the signature names.
        findings: files that are not as it says, by name; none in a right folder.
    """

    sealed: SealedFolder
    signed: bool
    checked: int
    findings: list[FileFinding]


@convert_errors("sealing the folder")
def seal_folder(folder: PathInput, *, purpose: str | None = None) -> SealedFolder:
    """Write the digest of a folder into it, as `folder.epctx.json`.

    Files in folders within it are included; state of epctx and of git is not. A file
    that this machine knows from the digest before is not read again.

    Args:
        folder: the folder of one build.
        purpose: use of it; None to keep that of the digest before.

    Raises:
        InvalidGraph: something in the folder is not a regular file, cannot be read, or
            is a link that leaves it.
        Fail: there is no such folder, or it cannot be written.

    Examples:
        >>> seal_folder("phi", purpose="phi for SM8650").files[0].name
        'decoder_ctx.onnx'
    """
    root = require_path(folder)
    root.stat()  # a publication would make the folder
    # No compile publishes into the folder meanwhile, and none that was killed is left.
    with Publication(root) as publication:
        before = _NOTHING
        with suppress(EpctxError):
            before = read_digest(root)
        sealed = _make_digest(root, before, purpose)
        if sealed != before:
            publication.create(DIGEST).write(encode_digest(sealed))
            publication.commit([DIGEST])
    return sealed


def _make_digest(root: Path, before: SealedFolder, purpose: str | None) -> SealedFolder:
    known = {file.name: file.digest for file in before.files}
    opener = ModelFolder(root)
    files = [
        _digest_file(opener, name, known.get(name, ""))
        for name in _list_names(root, _IGNORED)
    ]
    past = dict.fromkeys((*known.values(), *before.earlier))
    for file in files:
        past.pop(file.digest, None)
    return SealedFolder(
        purpose=before.purpose if purpose is None else purpose,
        tool=f"epctx {__version__}",
        compiled_by=_list_compilers(root),
        earlier=list(past)[:_MOST_EARLIER],
        files=files,
    )


def _list_names(folder: Path, ignored: Collection[str]) -> list[str]:
    """Return the names of all that is in a folder and in those within it, but for
    folders and state of epctx, in the order of Model Signing; links are not followed.
    """
    names: list[str] = []
    pending = [""]
    while pending:
        parent = pending.pop()
        for entry in os.scandir(folder / parent):
            name = f"{parent}{entry.name}"
            if name in ignored or entry.name.startswith(_STATE):
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(f"{name}/")
            else:
                names.append(name)
    return sorted(names, key=lambda name: name.split("/"))


def _digest_file(opener: ModelFolder, name: str, expected: str) -> SealedFile:
    """Return a file with its digest; it is not read if this machine knows that it has
    the expected one.

    Raises:
        InvalidGraph: it is no regular file, cannot be read, or leaves the folder.
    """
    with opener.open(
        name, what="the file", node=DIGEST, hint="Put a copy of the file in its place."
    ) as file:
        entry = PayloadEntry.of_file(name, file, expected)
    return SealedFile(name=name, digest=entry.segments[0].digest, size=entry.size)


def _list_compilers(root: Path) -> list[str]:
    """Return the EPs that compiled the context models of a folder."""
    found = set()
    for path in root.rglob("*.onnx"):
        # A model that cannot be read is a file like any other here.
        with suppress(EpctxError):
            for ep, facts in inspect_model(path).compiled_by.items():
                found.add(f"{ep}: {facts.get('distribution')} {facts.get('version')}")
    return sorted(found)


def encode_digest(sealed: SealedFolder) -> bytes:
    """Return a digest as its file has it: an in-toto statement."""
    facts = asdict(sealed)
    resources = facts.pop("files")
    digests = b"".join(bytes.fromhex(each["digest"]) for each in resources)
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        # A folder's own name may say something of the machine, and changes.
        "subject": [
            {"name": "folder", "digest": {"sha256": sha256(digests).hexdigest()}}
        ],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": _IGNORED,
            },
            "resources": resources,
            # Readers of the standard leave out keys that they do not know.
            "epctx": facts,
        },
    }
    return json.dumps(statement, indent=1).encode()


def read_digest(folder: Path) -> SealedFolder:
    """Return the digest that a folder has.

    Raises:
        InvalidGraph: it has none, or a damaged one.
    """
    path = folder / DIGEST
    problem = "it does not fit its own digest"
    try:
        data = read_small_file(path)
        predicate = parse_json(data)["predicate"]
        files = [SealedFile(**each) for each in predicate["resources"]]
        sealed = SealedFolder(files=files, **predicate["epctx"])
        # All are texts.
        "".join((sealed.purpose, sealed.tool, *sealed.compiled_by, *sealed.earlier))
        "".join(file.name for file in files)
        if encode_digest(sealed) == data:
            return sealed
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        problem = f"{error!s:.200}"
    raise InvalidGraph(
        f"{str(path)!r} is not the digest of a folder: {problem}.",
        path=path,
        hint="Fetch the folder again, or seal it where it is made (`epctx seal`).",
    )


@convert_errors("checking the folder")
def verify_folder(
    folder: PathInput, *, verifier: verifying.Config | None = None
) -> FolderReport:
    """Compare the files of a folder with its digest, or with its signature.

    A file that this machine has compared before, and that did not change since, is not
    read again.

    Args:
        folder: the folder, with `folder.epctx.json`.
        verifier: a configured `model_signing.verifying.Config`, to require the
            signature `model.sig` and compare the files with it; its hashing
            configuration is replaced.

    Raises:
        InvalidGraph: there is no digest, or it is damaged.
        InvalidArgument: there is no signature, or it is not right.

    Examples:
        >>> verify_folder("phi").findings[0]
        FileFinding(name='decoder_qnn.bin', problem='older')
    """
    root = require_path(folder)
    seal = root / (DIGEST if verifier is None else SIGNATURE)
    sealed = _NOTHING
    if verifier is None or os.path.lexists(root / DIGEST):
        sealed = read_digest(root)
    expected = {file.name: file.digest for file in sealed.files}
    ignored: Collection[str] = _IGNORED
    if verifier is not None:
        signed = _check_signature(seal, verifier)
        expected = signed.digests
        ignored = signed.ignored
    names = set(_list_names(root, ignored))
    # The digest may be a link into a cache, where the files lie, too.
    opener = ModelFolder(root, seal)
    findings = []
    for name in sorted({*names, *expected}):
        digest = expected.get(name)
        problem = "added" if digest is None else "missing"
        if digest is not None and name in names:
            problem = _find_difference(opener, name, digest, sealed, seal)
        if problem:
            findings.append(FileFinding(name=name, problem=problem))
    return FolderReport(
        sealed=sealed,
        signed=verifier is not None,
        checked=len(expected),
        findings=findings,
    )


def _find_difference(
    opener: ModelFolder, name: str, expected: str, sealed: SealedFolder, seal: Path
) -> str:
    """Return how a file differs from the one with the expected digest, see
    `FileFinding`; empty if it does not.
    """
    found = ""
    with suppress(InvalidGraph):
        found = _digest_file(opener, name, expected).digest
    if found == expected:
        return ""
    if found in sealed.earlier:
        return "older"
    times = [each.lstat().st_mtime_ns for each in (opener.folder / name, seal)]
    return "newer" if times[0] > times[1] else "foreign"


class _SignedFiles:
    """Hashing configuration of Model Signing that keeps the signed digests: the library
    itself would read all files, each time.

    The library asks it once the signature was found to be right, and never otherwise.

    Attributes:
        digests: SHA-256 (hex) of each file, by name.
        ignored: names that are not signed.
    """

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.ignored = [SIGNATURE]

    def add_ignored_paths(self, *, paths: Collection[object], **_: object) -> None:
        """Keep the names that the signer left out."""
        self.ignored += map(str, paths)

    def hash(self, *_: object, **_options: object) -> _SignedFiles:
        """Return this object, for a comparison with the signed digests."""
        return self

    def __ne__(self, signed: Any) -> bool:  # noqa: PYI032 - only the library calls it
        if signed.serialization_type["method"] != "files":
            raise ValueError("it is not of whole files")
        for each in signed.resource_descriptors():
            self.digests[each.identifier] = each.digest.digest_hex
        return False


def _check_signature(path: Path, verifier: Any) -> _SignedFiles:
    """Return the files that are signed.

    Raises:
        InvalidArgument: there is no signature, or it is not right.
    """
    signed = _SignedFiles()
    try:
        read_small_file(path)  # the library has no bound
        verifier.set_hashing_config(signed)
        verifier.verify(path.parent, path)
    except Exception as error:
        raise InvalidArgument(
            f"the signature {str(path)!r} is not right: {type(error).__name__}: "
            f"{error!s:.300}.",
            path=path,
            hint="Check the key, and fetch the folder again.",
        ) from error
    return signed
