"""Keys, and the command line of Model Signing, which signs folders and verifies them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def keys(tmp_path):
    """A private key and its public one, as files."""
    pytest.importorskip(
        "model_signing", reason="needs model-signing (epctx-files[signing])"
    )
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(
        key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(
            form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def command(verb, folder, **options):
    """Run the command line of Model Signing."""
    flags = [part for k, v in options.items() for part in (f"--{k}", str(v))]
    return subprocess.run(
        [sys.executable, "-m", "model_signing", verb, "key", str(folder),
         "--signature", str(folder / "model.sig"), *flags],
        capture_output=True, check=False, text=True, timeout=60,
    )  # fmt: skip


def by_key(public):
    from model_signing import verifying

    return verifying.Config().use_elliptic_key_verifier(public_key=public)
