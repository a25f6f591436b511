"""A context model that lies on disk only encrypted: AES-256-GCM around the data
callbacks.

Run `python examples/encrypted_context.py FOLDER`: a small network is compiled for the
simulated QNN, stored in FOLDER, loaded and run; then a wrong key and a changed byte are
tried. `docs/how-to/models/encrypted-context.md` says what this protects from and what
it does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import GCM
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx

CHUNK = 1 << 20
NONCE, TAG = 12, 16
LARGEST_PAYLOAD = 4 << 30


class Vault:
    """Encrypted files in a folder.

    A file is nonce, ciphertext, tag; its name is authenticated with it.

    Args:
        folder: where the files are; it exists.
        key: 32 bytes. Where they come from is the application's business.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self._folder = folder
        self._key = key

    def write(self, name: str, data: epctx.OrtEpContextData) -> None:
        """Store a payload: the write callback of a compiler."""
        self._store(
            name,
            (
                data.read(at, min(CHUNK, data.size - at))
                for at in range(0, data.size, CHUNK)
            ),
        )

    def read(self, name: str, buffer: epctx.OrtEpContextDataBuffer) -> None:
        """Give a payload: the read callback of a session."""
        size, pieces = self._open(name)
        buffer.allocate(size)
        at = 0
        for piece in pieces:
            buffer.write(piece, at)
            at += len(piece)

    def write_model(self, name: str, model: bytes) -> None:
        """Store a context model."""
        self._store(name, [model])

    def read_model(self, name: str) -> bytes:
        """Return a context model."""
        return b"".join(self._open(name)[1])

    def _store(self, name: str, pieces: Iterable[bytes]) -> None:
        nonce = os.urandom(NONCE)
        encryptor = Cipher(AES256(self._key), GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(name.encode())
        target = self._path(name)
        part = target.with_suffix(".part")
        with part.open("wb") as file:
            file.write(nonce)
            for piece in pieces:
                file.write(encryptor.update(piece))
            file.write(encryptor.finalize() + encryptor.tag)
        part.replace(target)

    def _open(self, name: str) -> tuple[int, Iterator[bytes]]:
        """Return the size and the pieces; the last step of the iteration raises
        InvalidTag for a changed file.
        """
        path = self._path(name)
        size = path.stat().st_size - NONCE - TAG
        if size < 0:
            raise InvalidTag
        return size, self._pieces(path, name, size)

    def _pieces(self, path: Path, name: str, size: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            nonce = file.read(NONCE)
            file.seek(-TAG, os.SEEK_END)
            tag = file.read()
            file.seek(NONCE)
            decryptor = Cipher(AES256(self._key), GCM(nonce, tag)).decryptor()
            decryptor.authenticate_additional_data(name.encode())
            for at in range(0, size, CHUNK):
                yield decryptor.update(file.read(min(CHUNK, size - at)))
            yield decryptor.finalize()

    def _path(self, name: str) -> Path:
        # The core opens nothing for a callback and so checks no name.
        if Path(name).name != name:
            raise ValueError(f"{name!r} is no plain file name")
        return self._folder / f"{name}.enc"


def compile_encrypted(
    source: bytes | Path, name: str, options: epctx.SessionOptions, vault: Vault
) -> None:
    """Compile a model; payloads and model go into the vault and nowhere else."""
    options = options.copy()
    # Payloads are named after the model; with the callback nothing is written there.
    options.add_session_config_entry("ep.context_file_path", name)
    compiler = epctx.ModelCompiler(options, source)
    compiler.set_ep_context_data_write_func(vault.write)
    # Last, so that there is no model without its payloads.
    vault.write_model(name, compiler.compile_to_bytes())


def open_encrypted(
    name: str, options: epctx.SessionOptions, vault: Vault
) -> epctx.InferenceSession:
    """Return a session of a context model out of the vault."""
    options = options.copy()
    options.set_ep_context_data_read_func(vault.read, LARGEST_PAYLOAD)
    return epctx.InferenceSession(vault.read_model(name), options)


def small_network() -> bytes:
    """Return a network of two layers."""
    generator = np.random.default_rng(0)
    sizes = {"w0": (64, 256), "w1": (256, 10)}
    weights = [
        numpy_helper.from_array(
            generator.standard_normal(shape, dtype=np.float32), name
        )
        for name, shape in sizes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w1"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width])
        for n, width in (("x", 64), ("y", 10))
    )
    graph = helper.make_graph(nodes, "two-layers", [x], [y], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def main(folder: Path) -> int:
    """Store, load, run; then show what is refused. Return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    source, key = small_network(), os.urandom(32)
    compile_encrypted(source, "network_ctx.onnx", options, Vault(folder, key))
    for file in sorted(folder.iterdir()):
        print(f"stored {file.name}: {file.stat().st_size:,} bytes")

    x = np.ones((1, 64), dtype=np.float32)
    with epctx.InferenceSession(source) as plain:
        expected = plain.run(None, {"x": x})[0]
    with open_encrypted("network_ctx.onnx", options, Vault(folder, key)) as session:
        close = np.allclose(session.run(None, {"x": x})[0], expected, atol=1e-5)
        print(
            f"loaded by {session.get_providers()[0]}: results "
            f"{'agree' if close else 'DIFFER'}"
        )

    refused = [
        refusal("a wrong key", options, Vault(folder, os.urandom(32))),
        refusal("a changed byte", options, Vault(changed(folder), key)),
    ]
    return 0 if close and all(refused) else 1


def changed(folder: Path) -> Path:
    """Flip one bit of the payload; return the folder."""
    path = folder / "network_qnn.bin.enc"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return folder


def refusal(what: str, options: epctx.SessionOptions, vault: Vault) -> bool:
    """Try to load; return whether that was refused."""
    try:
        open_encrypted("network_ctx.onnx", options, vault).close()
    except (InvalidTag, epctx.Fail) as error:
        print(f"{what} is refused: {type(error).__name__}")
        return True
    print(f"{what} was ACCEPTED")
    return False


if __name__ == "__main__":
    raise SystemExit(
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "encrypted-output"))
    )
