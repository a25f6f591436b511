"""Fixtures: a source, what is built of it, and a cache for all tests of a worker."""

from __future__ import annotations

import shutil

import pytest
from epctx_genai import BuildSettings, build_folder
from support.cli_fixtures import epctx  # noqa: F401 - a fixture
from support.pipelines import write_pipeline

import epctx_core


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Keep what is compiled for this session alone, where each stage is compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def options():
    """Session options with the simulated QNN EP."""
    made = epctx_core.SessionOptions()
    made.add_provider("QNN", {"htp_arch": "75"})
    return made


@pytest.fixture(scope="session")
def openvino():
    """Session options with the simulated OpenVINO EP, which takes open dimensions."""
    made = epctx_core.SessionOptions()
    made.add_provider("OpenVINO")
    return made


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """The folder of a pipeline of four stages; no test changes it."""
    return write_pipeline(tmp_path_factory.mktemp("source") / "tiny")


@pytest.fixture(scope="session")
def built_once(source, options, tmp_path_factory):
    """A build of the source's layers; no test changes it."""
    output = tmp_path_factory.mktemp("built") / "tiny-qnn"
    settings = BuildSettings(stages=("prefill", "decode"))
    build_folder(source, output, options, settings=settings)
    return output


@pytest.fixture
def built(built_once, tmp_path):
    """A copy of the build for one test."""
    return shutil.copytree(built_once, tmp_path / "tiny-qnn")
