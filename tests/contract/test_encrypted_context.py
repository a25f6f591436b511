"""Entry 126: the example of encrypted-context.md, with its keys, files and names
tampered with.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.folders import ROOT
from support.pages import FILES
from support.routes import refused
from support.small_models import snapshot

import epctx_core as epctx
from epctx_core import Fail, InvalidArgument, InvalidGraph

EXAMPLE = ROOT / "examples" / "encrypted_context.py"
DOCUMENT = FILES["encrypted-context.md"]
NAME, PAYLOAD = "network_ctx.onnx", "network_qnn.bin"

cryptography = pytest.importorskip("cryptography.exceptions")
pytestmark = pytest.mark.entry(126)


@pytest.fixture(scope="module")
def example():
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("encrypted_context_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def options():
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    return options


@pytest.fixture
def vault(example, options, tmp_path):
    """A vault with one model."""
    folder = tmp_path / "vault"
    folder.mkdir()
    vault = example.Vault(folder, b"k" * 32)
    example.compile_encrypted(example.small_network(), NAME, options, vault)
    return vault


@pytest.fixture
def files(tmp_path, vault):
    """Model and payload as they lie on disk."""
    folder = tmp_path / "vault"
    return folder / f"{NAME}.enc", folder / f"{PAYLOAD}.enc"


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_model_out_of_the_vault_runs(example, options, vault, tmp_path):
    x = np.ones((1, 64), np.float32)

    with example.open_encrypted(NAME, options, vault) as session:
        found = session.run(None, {"x": x})[0]

    with epctx.InferenceSession(example.small_network()) as plain:
        assert np.allclose(found, plain.run(None, {"x": x})[0], atol=1e-5)
    assert sorted(snapshot(tmp_path)) == [
        "vault",
        f"vault/{NAME}.enc",
        f"vault/{PAYLOAD}.enc",
    ]


def test_a_wrong_key_opens_neither_model_nor_payload(example, options, vault, tmp_path):
    other = example.Vault(tmp_path / "vault", b"x" * 32)
    options.set_ep_context_data_read_func(other.read, 1 << 30)

    with pytest.raises(cryptography.InvalidTag):
        example.open_encrypted(NAME, options, other)
    with refused(
        Fail, f"callback raised for the payload '{PAYLOAD}': InvalidTag"
    ) as caught:
        epctx.InferenceSession(vault.read_model(NAME), options)

    assert isinstance(caught.value.__cause__, cryptography.InvalidTag)


@pytest.mark.parametrize(
    "where", [0, 12, 1000, -1], ids=["nonce", "first byte", "inside", "tag"]
)
def test_a_changed_byte_is_found(example, options, vault, files, where):
    model, payload = files
    good = payload.read_bytes()
    payload.write_bytes(flipped(good, where % len(good)))
    with refused(Fail, "InvalidTag"):
        example.open_encrypted(NAME, options, vault)

    payload.write_bytes(good)
    model.write_bytes(flipped(model.read_bytes(), where % len(model.read_bytes())))
    with pytest.raises(cryptography.InvalidTag):
        example.open_encrypted(NAME, options, vault)


@pytest.mark.parametrize("left", [0, 20, -1])
def test_a_cut_file_is_found(example, options, vault, files, left):
    payload = files[1]
    payload.write_bytes(payload.read_bytes()[:left])

    with refused(Fail, "InvalidTag"):
        example.open_encrypted(NAME, options, vault)


def test_swapped_names_are_found(example, options, vault, files, tmp_path):
    example.compile_encrypted(example.small_network(), "other_ctx.onnx", options, vault)
    others = [
        tmp_path / "vault" / "other_ctx.onnx.enc",
        tmp_path / "vault" / "other_qnn.bin.enc",
    ]
    assert all(other.is_file() for other in others)

    others[1].replace(files[1])
    with refused(Fail, "InvalidTag"):
        example.open_encrypted(NAME, options, vault)
    others[0].replace(files[0])
    with pytest.raises(cryptography.InvalidTag):
        example.open_encrypted(NAME, options, vault)


def test_a_payload_of_another_compile_is_refused_by_the_manifest(
    example, options, vault, files
):
    old = files[1].read_bytes()
    half = epctx.SessionOptions()
    half.add_provider("QNN", {"enable_htp_fp16_precision": "1"})
    example.compile_encrypted(example.small_network(), NAME, half, vault)
    files[1].write_bytes(old)

    with refused(
        InvalidGraph, f"'{PAYLOAD}' is not the one that the model was written with"
    ):
        example.open_encrypted(NAME, options, vault)


def test_without_a_callback_a_model_from_bytes_says_what_is_missing(options, vault):
    with refused(InvalidArgument, f"given as bytes.*'{PAYLOAD}'") as caught:
        epctx.InferenceSession(vault.read_model(NAME), options)

    assert "ep.context_file_path" in caught.value.hint


def test_a_name_that_leaves_the_vault_is_the_hosts_to_refuse(vault):
    with pytest.raises(ValueError, match="no plain file name"):
        vault.read_model("../network_ctx.onnx")


WATCHED = """
import atexit, os, sys
written = []
def look(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, (str, bytes)) and (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.append(os.path.abspath(os.fsdecode(path)))
sys.addaudithook(look)
sys.argv[1:] = [{folder!r}]
import runpy
try:
    runpy.run_path({example!r}, run_name="__main__")
except SystemExit as end:
    code = end.code
print("WRITTEN", sorted(set(written)))
sys.exit(code)
"""


def test_the_example_runs_and_writes_nothing_but_ciphertext(tmp_path):
    folder, here, scratch = tmp_path / "out", tmp_path / "here", tmp_path / "scratch"
    here.mkdir()
    scratch.mkdir()
    code = WATCHED.format(folder=str(folder), example=str(EXAMPLE))
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=here, env=environment, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "results agree" in done.stdout
    assert done.stdout.count("is refused") == 2
    written = set(re.findall(r"'([^']+)'", done.stdout.partition("WRITTEN")[2])) - {
        os.devnull
    }
    assert {Path(path).parent for path in written} == {folder}
    assert sorted(snapshot(folder)) == [f"{NAME}.enc", f"{PAYLOAD}.enc"]
    # onnxruntime leaves a number of its own, of its process, where temporary files go.
    assert set(snapshot(scratch)) <= {".ses"}
    assert snapshot(here) == {}
    for content in snapshot(folder).values():
        for plain in (
            b"EPContext",
            b"QNNExecutionProvider",
            b"two-layers",
            b"epctx.manifest",
        ):
            assert plain not in content


def test_the_document_shows_the_example_as_it_is():
    lines = {line.strip() for line in EXAMPLE.read_text(encoding="utf-8").splitlines()}
    blocks = re.findall(
        r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL
    )

    shown = [
        line.strip() for block in blocks for line in block.splitlines() if line.strip()
    ]

    assert len(shown) > 10
    assert [line for line in shown if line not in lines] == []
