"""Fixtures for every test: real networks with inputs and reference results."""

from __future__ import annotations

from typing import Protocol

import pytest
from networks.catalog import Catalog, Network


class NetworkFactory(Protocol):
    """`network("bert")` gives a fresh copy; `seed=1` gives it with other inputs."""

    def __call__(self, name: str, *, seed: int = 0) -> Network:
        """Return a network as a test's own copy."""


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> NetworkFactory:
    """Make networks: bert, lstm, resnet as exported, or any light network of the onnx package, filled."""
    return Catalog(tmp_path_factory.mktemp("networks")).get
