"""Encrypted payloads: what they need, what they hide, and what is refused."""

from __future__ import annotations

import json
import sys

import numpy as np
import onnx
import pytest
from epctx_sim_vitisai import sealing
from epctx_sim_vitisai.sealing import MAGIC, Sealer, UnsealingError, is_sealed

import epctx_core as epctx
from epctx_core.errors import EPFail, InvalidArgument, InvalidGraph

pytestmark = pytest.mark.internal

OTHER = "ab" * 32
MODES = [pytest.param(False, id="file"), pytest.param(True, id="embedded")]


@pytest.fixture
def locked(bench):
    """An encrypted context model of two partitions, without a manifest."""
    path, _ = bench.compile(bench.two_partitions(), encryption_key=bench.key)
    bench.change(path)
    return path


@pytest.mark.parametrize("embed", MODES)
def test_an_encrypted_model_runs_with_its_key(bench, embed):
    model = bench.two_partitions()
    plain, _ = bench.compile(model, name="plain")
    path, _ = bench.compile(model, embed=embed, encryption_key=bench.key)

    (result,) = bench.run(path, bench.x_for(model), encryption_key=bench.key.upper())

    assert np.array_equal(result, bench.run(plain, bench.x_for(model))[0])
    assert {node["enable_encryption"] for node in bench.nodes(path)} == {1}


def test_nothing_of_the_network_can_be_read(bench, locked):
    content = bench.binary().read_bytes()
    names = [node["partition_name"] for node in bench.nodes(locked)]

    assert content.startswith(MAGIC)
    assert is_sealed(memoryview(content))
    for hidden in (b"EPCTXSIM", b"ustar", b"Conv", *names):
        assert hidden not in content


def test_the_same_model_is_encrypted_differently_each_time(bench, locked):
    first = bench.binary().read_bytes()

    bench.compile(bench.two_partitions(), encryption_key=bench.key)

    assert bench.binary().read_bytes()[len(MAGIC) :] != first[len(MAGIC) :]
    assert len(bench.binary().read_bytes()) == len(first)


def refused(bench, path, words, **options):
    with pytest.raises(InvalidGraph, match=words) as caught:
        epctx.InferenceSession(path, bench.options(**options))
    assert caught.value.node
    assert caught.value.hint
    for key in (bench.key, OTHER):
        assert key not in str(caught.value)
    return caught.value


def test_without_a_key_it_is_refused(bench, locked):
    refused(bench, locked, "is encrypted, and there is no key")


def test_with_another_key_it_is_refused(bench, locked):
    error = refused(bench, locked, "cannot be decrypted", encryption_key=OTHER)

    assert error.hint.startswith("Give the encryption_key")


def test_an_archive_that_is_not_encrypted_is_refused_where_a_key_was_given(
    bench, compiled
):
    refused(
        bench,
        compiled,
        "is not encrypted, but there is an encryption_key",
        encryption_key=OTHER,
    )


def test_a_plain_archive_in_place_of_an_encrypted_one_is_refused(bench, locked):
    bench.compile(bench.two_partitions(), name="plain")
    bench.binary().write_bytes(bench.binary("plain").read_bytes())

    refused(
        bench,
        locked,
        "is not encrypted, but the node says that it is",
        encryption_key=bench.key,
    )


def test_another_models_archive_of_the_same_key_is_refused(bench, locked):
    bench.compile(bench.two_partitions(seed=5), name="other", encryption_key=bench.key)
    bench.binary().write_bytes(bench.binary("other").read_bytes())

    refused(bench, locked, "cannot be decrypted", encryption_key=bench.key)


def test_an_altered_cache_file_prefix_is_refused(bench, locked):
    bench.change(locked, n0={"cache_file_prefix": "x"}, n1={"cache_file_prefix": "x"})

    refused(bench, locked, "cannot be decrypted", encryption_key=bench.key)


def test_every_altered_byte_and_every_truncation_is_refused(bench, locked):
    content = bench.binary().read_bytes()
    for place in [len(MAGIC), len(MAGIC) + 12, len(content) // 2, len(content) - 1]:
        for changed in (
            content[:place],
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :],
        ):
            bench.binary().write_bytes(changed)
            refused(bench, locked, "cannot be decrypted", encryption_key=bench.key)


def test_the_key_is_in_no_file_and_no_report(bench, tmp_path):
    path, report = bench.compile(bench.two_partitions(), encryption_key=bench.key)

    assert bench.key not in json.dumps(report.as_dict(), default=str)
    for file in tmp_path.iterdir():
        assert bench.key.encode() not in file.read_bytes()
        assert bytes.fromhex(bench.key) not in file.read_bytes()
    assert path.exists()


@pytest.mark.parametrize("key", ["", "12", "g" * 64, "ab" * 16])
def test_a_key_that_is_none_is_refused_without_showing_it(bench, key):
    if not key:
        assert bench.compile(bench.two_partitions(), encryption_key=key)
        return
    with pytest.raises(InvalidArgument) as caught:
        bench.compile(bench.two_partitions(), encryption_key=key)
    assert key not in caught.value.message.replace("12 ", "")
    assert "64 hexadecimal" in caught.value.hint


def test_without_the_package_the_error_says_what_to_install(bench, monkeypatch):
    # What Python's import makes of a module that is not there.
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "cryptography"
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)

    with pytest.raises(
        InvalidArgument, match="needs the package cryptography"
    ) as caught:
        bench.compile(bench.two_partitions(), encryption_key=bench.key)

    assert "pip install cryptography" in caught.value.hint


def test_equal_content_is_sealed_equally_by_one_instance_and_other_content_with_another_nonce(
    bench,
):
    sealer = Sealer(bytes.fromhex(bench.key))
    nonce = slice(len(MAGIC), len(MAGIC) + 12)

    first, again, other, elsewhere = (
        sealer.seal(*pair)
        for pair in ((b"abc", "k"), (b"abc", "k"), (b"abd", "k"), (b"abc", "l"))
    )

    assert first == again
    assert len({found[nonce] for found in (first, other, elsewhere)}) == 3
    assert bytes(sealer.open(memoryview(first), "k")) == b"abc"
    with pytest.raises(UnsealingError):
        sealer.open(memoryview(first), "l")


def test_content_that_the_cipher_cannot_take_is_refused(bench, monkeypatch):
    monkeypatch.setattr(sealing, "MAX_CONTENT", 1000)

    with pytest.raises(EPFail, match="the limit is 984"):
        bench.compile(bench.two_partitions(), encryption_key=bench.key)


def test_encrypted_and_plain_payloads_hold_the_same_archive(bench, locked):
    plain, _ = bench.compile(bench.two_partitions(), name="plain")
    prefix = onnx.helper.get_node_attr_value(
        next(n for n in onnx.load(locked).graph.node if n.op_type == "EPContext"),
        "cache_file_prefix",
    ).decode()

    opened = Sealer(bytes.fromhex(bench.key)).open(
        memoryview(bench.binary().read_bytes()), prefix
    )

    assert bytes(opened) == bench.binary("plain").read_bytes()
    assert plain.exists()
