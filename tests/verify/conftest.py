"""Fixtures: each test gets copies of its own."""

from __future__ import annotations

import shutil

import pytest
from support.context_pairs import Harness, by_hand, by_qnn


@pytest.fixture(scope="session")
def _compiled_once(tmp_path_factory):
    return by_qnn(tmp_path_factory.mktemp("verify") / "qnn")


@pytest.fixture
def compiled(_compiled_once, tmp_path):
    """A context model of three nodes by the simulated QNN EP, with its binary and a
    manifest.
    """
    shutil.copytree(_compiled_once.parent, tmp_path / "compiled")
    return Harness(tmp_path / "compiled" / "m_ctx.onnx")


@pytest.fixture
def handmade(tmp_path):
    """A context model of two nodes without a manifest, for an EP that takes
    anything.
    """
    return by_hand(tmp_path / "handmade")
