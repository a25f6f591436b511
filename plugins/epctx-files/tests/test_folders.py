"""Digests of folders: files that are missing, of another build, or added, each by its
name; and signatures by the library of the field.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from epctx_files import folders, seal_folder, verify_folder
from file_models import compiled, product
from support.signatures import by_key, command

from epctx_core.context import digests
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph

pytestmark = pytest.mark.internal

DIGEST = "folder.epctx.json"
NAMES = [
    "decoder_ctx.onnx",
    "decoder_qnn.bin",
    "encoder_ctx.onnx",
    "encoder_qnn.bin",
    "genai_config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/vocab.txt",
]


def build(folder, seed):
    """Write the folder of a build of two stages: others of a seed differ in each file,
    and have the same names and lengths.
    """
    for number, stage in enumerate(("encoder", "decoder")):
        plain = product(
            folder / f"{stage}.onnx", own=f"s{seed}", seed=seed + number, external=False
        )
        compiled(plain)
        plain.unlink()
    (folder / "tokenizer").mkdir()
    for name in NAMES[4:]:
        (folder / name).write_text(f'{{"build": {seed}, "of": "{name}"}}')
    return folder


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """Two builds with the same names, not sealed."""
    parent = tmp_path_factory.mktemp("builds")
    return build(parent / "old", 1), build(parent / "new", 5)


@pytest.fixture
def folder(builds, tmp_path):
    """A sealed folder of the new build."""
    copied = shutil.copytree(builds[1], tmp_path / "phi")
    seal_folder(copied, purpose="phi for SM8650")
    return copied


def problems(folder, **options):
    report = verify_folder(folder, **options)
    return {finding.name: finding.problem for finding in report.findings}


def age(path, seconds):
    """Have a file look as if it had been written so many seconds before the digest."""
    written = path.parent.joinpath(DIGEST).stat().st_mtime - seconds
    os.utime(path, (written, written))


def test_a_sealed_folder_is_right_and_says_who_made_it(folder):
    report = verify_folder(folder)

    assert (report.findings, report.checked, report.signed) == ([], len(NAMES), False)
    assert [file.name for file in report.sealed.files] == NAMES
    assert report.sealed.purpose == "phi for SM8650"
    (compiler,) = report.sealed.compiled_by
    assert compiler.startswith("QNNExecutionProvider: epctx-sim-qnn ")


def test_a_digest_is_the_same_wherever_the_folder_lies(folder, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "elsewhere")
    (copied / DIGEST).unlink()

    seal_folder(copied, purpose="phi for SM8650")

    assert (copied / DIGEST).read_bytes() == (folder / DIGEST).read_bytes()
    assert str(tmp_path) not in (folder / DIGEST).read_text()


def test_each_file_that_is_missing_other_or_added_is_named(folder, builds):
    (folder / "encoder_ctx.onnx").unlink()
    (folder / "tokenizer" / "added.txt").write_text("x")
    (folder / "genai_config.json").write_text("{}")
    age(folder / "genai_config.json", 60)
    shutil.copyfile(builds[0] / "decoder_qnn.bin", folder / "decoder_qnn.bin")
    age(folder / "decoder_qnn.bin", -60)

    assert problems(folder) == {
        "decoder_qnn.bin": "newer",
        "encoder_ctx.onnx": "missing",
        "genai_config.json": "foreign",
        "tokenizer/added.txt": "added",
    }


def test_a_file_of_the_build_before_is_older(builds, tmp_path):
    folder = shutil.copytree(builds[0], tmp_path / "phi")
    seal_folder(folder, purpose="phi")
    shutil.copytree(builds[1], folder, dirs_exist_ok=True)
    sealed = seal_folder(folder)

    shutil.copyfile(builds[0] / "decoder_qnn.bin", folder / "decoder_qnn.bin")

    assert sealed.purpose == "phi"
    assert problems(folder) == {"decoder_qnn.bin": "older"}
    shutil.copyfile(builds[1] / "decoder_qnn.bin", folder / "decoder_qnn.bin")
    assert problems(folder) == {}


@pytest.mark.parametrize("way", ["half-updated", "swapped", "stale", "half-removed"])
def test_a_folder_of_two_builds_is_refused_by_the_names_of_its_files(
    builds, folder, way
):
    """25 folders for each of four ways are the 100."""
    old, new = builds
    draw = random.Random(way)  # noqa: S311 - the same folders each time
    digest = (folder / DIGEST).read_bytes()
    for _ in range(25):
        shutil.rmtree(folder)
        shutil.copytree(old if way == "stale" else new, folder)
        (folder / DIGEST).write_bytes(digest)
        chosen = draw.sample(NAMES, draw.randint(2, len(NAMES) - 1))
        if way == "swapped":
            contents = [(new / name).read_bytes() for name in chosen]
            for name, content in zip(chosen, contents[1:] + contents[:1], strict=True):
                (folder / name).write_bytes(content)
        elif way == "half-removed":
            for name in chosen:
                (folder / name).unlink()
        else:
            for name in chosen:
                source = new if way == "stale" else old
                shutil.copy2(source / name, folder / name)

        wrong = set(NAMES) - set(chosen) if way == "stale" else set(chosen)
        assert problems(folder).keys() == wrong


def test_a_file_is_read_again_only_where_it_has_changed(folder, monkeypatch):
    # So young a file gets no receipt.
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    read = []
    digest_file = hashlib.file_digest

    def count(file, name):
        read.append(Path(file.path).name)
        return digest_file(file, name)

    monkeypatch.setattr(digests.hashlib, "file_digest", count)
    verify_folder(folder)
    read.clear()

    assert problems(folder) == {}
    seal_folder(folder)
    assert read == []
    (folder / "genai_config.json").write_text("{}")
    assert problems(folder).keys() == {"genai_config.json"}
    assert read == ["genai_config.json"]
    read.clear()
    seal_folder(folder)
    verify_folder(folder)
    assert read == ["genai_config.json"]


def test_sealing_again_changes_nothing(folder):
    before = (folder / DIGEST).stat()

    seal_folder(folder)

    assert (folder / DIGEST).stat() == before


def test_state_of_epctx_and_of_git_is_no_file_of_a_folder(folder):
    for name in (".epctx-0123", ".git", "tokenizer/.epctx-4567"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("x")

    assert problems(folder) == {}


def test_a_link_that_leaves_the_folder_is_not_sealed(folder, tmp_path):
    (tmp_path / "outside").write_text("x")
    (folder / "config").symlink_to(tmp_path / "outside")

    with pytest.raises(InvalidGraph, match=r"'config'.* leaves the"):
        seal_folder(folder)
    assert problems(folder) == {"config": "added"}


def test_a_file_that_became_a_link_that_leaves_the_folder_is_refused(folder, tmp_path):
    (folder / "genai_config.json").rename(tmp_path / "outside")
    (folder / "genai_config.json").symlink_to(tmp_path / "outside")

    assert problems(folder).keys() == {"genai_config.json"}


def test_a_folder_of_links_into_a_cache_is_right(folder, tmp_path):
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, name in enumerate([*NAMES, DIGEST]):
        (folder / name).rename(blobs / str(number))
        (folder / name).symlink_to(blobs / str(number))

    assert problems(folder) == {}


def write(folder, change):
    """Change the digest of a folder."""
    statement = json.loads((folder / DIGEST).read_text())
    change(statement["predicate"])
    (folder / DIGEST).write_text(json.dumps(statement, indent=1))


@pytest.mark.parametrize(
    "change",
    [
        lambda predicate: predicate["resources"].pop(),
        lambda predicate: predicate["resources"][0].update(digest="00" * 32),
        lambda predicate: predicate["resources"][0].update(name=5),
        lambda predicate: predicate["resources"][0].update(digest=None),
        lambda predicate: predicate["epctx"].update(purpose=[1]),
        lambda predicate: predicate["epctx"].update(earlier=7),
        lambda predicate: predicate["epctx"].pop("tool"),
        lambda predicate: predicate.update(resources="all"),
    ],
)
def test_a_digest_that_was_changed_is_refused(folder, change):
    write(folder, change)

    with pytest.raises(InvalidGraph, match=DIGEST):
        verify_folder(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"[]", None])
def test_what_is_no_digest_is_refused(folder, content):
    (folder / DIGEST).unlink()
    if content is not None:
        (folder / DIGEST).write_bytes(content)

    with pytest.raises(InvalidGraph, match=DIGEST):
        verify_folder(folder)


def test_a_digest_of_terabytes_is_refused_unread(folder):
    os.truncate(folder / DIGEST, 1 << 40)

    with pytest.raises(InvalidGraph, match="the limit is"):
        verify_folder(folder)


def test_a_folder_that_is_not_there_is_neither_sealed_nor_made(tmp_path):
    with pytest.raises(Fail, match="No such file"):
        seal_folder(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_signed_folder_is_right_for_both_and_a_changed_one_for_neither(folder, keys):
    private, public = keys
    assert command("sign", folder, private_key=private).returncode == 0

    report = verify_folder(folder, verifier=by_key(public))

    assert (report.signed, report.findings) == (True, [])
    assert report.checked == len(NAMES) + 1  # the digest is signed
    assert command("verify", folder, public_key=public).returncode == 0
    assert problems(folder) == {}

    (folder / "tokenizer" / "vocab.txt").write_text("x")
    (folder / DIGEST).unlink()
    (folder / "added").write_text("x")
    wrong = problems(folder, verifier=by_key(public))
    assert wrong.keys() == {"tokenizer/vocab.txt", DIGEST, "added"}
    assert command("verify", folder, public_key=public).returncode != 0


def test_a_digest_signed_as_it_is_is_a_signature_for_both(folder, keys):
    """The digest is a statement of the standard: an envelope makes it a signature."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = keys
    kind, payload = "application/vnd.in-toto+json", (folder / DIGEST).read_bytes()
    key = form.load_pem_private_key(private.read_bytes(), None)
    encoded = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    signature = key.sign(encoded, ec.ECDSA(hashes.SHA256()))
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {
            "publicKey": {"hint": hashlib.sha256(public.read_bytes()).hexdigest()},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": kind,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    (folder / "model.sig").write_text(json.dumps(bundle))

    assert command("verify", folder, public_key=public).returncode == 0
    report = verify_folder(folder, verifier=by_key(public))
    assert (report.checked, report.findings) == (len(NAMES), [])


def test_a_folder_that_is_signed_alone_needs_no_digest(builds, keys, tmp_path):
    private, public = keys
    folder = shutil.copytree(builds[0], tmp_path / "phi")
    assert command("sign", folder, private_key=private).returncode == 0

    assert problems(folder, verifier=by_key(public)) == {}
    (folder / "genai_config.json").write_text("{}")
    assert problems(folder, verifier=by_key(public)).keys() == {"genai_config.json"}


@pytest.mark.parametrize("damage", ["missing", "other key", "changed", "no JSON"])
def test_a_signature_that_is_not_right_is_refused(folder, keys, damage):
    private, public = keys
    path = folder / "model.sig"
    assert command("sign", folder, private_key=private).returncode == 0
    if damage == "missing":
        path.unlink()
    if damage == "changed":
        bundle = json.loads(path.read_text())
        payload = base64.b64decode(bundle["dsseEnvelope"]["payload"])
        payload = payload.replace(b"decoder_qnn", b"decoder_abc")
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
        path.write_text(json.dumps(bundle))
    if damage == "no JSON":
        path.write_text("{")
    if damage == "other key":
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric import ec

        other = ec.generate_private_key(ec.SECP256R1()).public_key()
        public.write_bytes(
            other.public_bytes(
                form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
            )
        )

    with pytest.raises(InvalidArgument, match=r"model\.sig' is not right"):
        verify_folder(folder, verifier=by_key(public))


def test_a_digest_needs_no_library_for_signatures():
    assert folders.DIGEST == DIGEST
    code = "import sys, epctx_files.folders; print('model_signing' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"
