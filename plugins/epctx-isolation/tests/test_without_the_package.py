"""`ep.isolate` where epctx-isolation is not installed: said, and never ignored."""

from __future__ import annotations

import sys

import pytest
from support.engine_eps import Alpha
from support.install_commands import pip_install
from support.isolation import compiled, options_for, registry_of, source

import epctx_core as epctx
from epctx_core.errors import PackageMissing


class Absent:
    """Python's own answer where there is no such package."""

    @staticmethod
    def find_spec(name, *_):
        if name == "epctx_isolation":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture(autouse=True)
def absent(monkeypatch):
    """Let Python find no package of this name."""
    for name in [
        name for name in sys.modules if name.partition(".")[0] == "epctx_isolation"
    ]:
        monkeypatch.delitem(sys.modules, name)
    # In place: what is imported meanwhile may add a finder that is to stay.
    sys.meta_path.insert(0, Absent)
    yield
    sys.meta_path.remove(Absent)


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_compile_says_what_to_install_and_writes_nothing(tmp_path, mode):
    with pytest.raises(
        PackageMissing, match=f"ep.isolate={mode} needs the package epctx-isolation"
    ) as caught:
        compiled(
            tmp_path / "out", source(tmp_path), Alpha, options_for(Alpha, isolate=mode)
        )

    assert caught.value.hint == pip_install("epctx-isolation")
    assert isinstance(caught.value, epctx.NotFound)
    assert isinstance(caught.value, ImportError)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_session_says_what_to_install(tmp_path, mode):
    with pytest.raises(
        PackageMissing, match=f"ep.isolate={mode} needs the package epctx-isolation"
    ):
        epctx.InferenceSession(
            source(tmp_path),
            options_for(Alpha, isolate=mode),
            registry=registry_of(Alpha),
        )


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_session_without_an_ep_says_so_too(tmp_path, mode):
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.isolate", mode)

    with pytest.raises(PackageMissing, match="needs the package epctx-isolation"):
        epctx.InferenceSession(
            source(tmp_path), options, providers=["CPUExecutionProvider"]
        )


def test_a_compile_with_a_time_limit_says_what_to_install(tmp_path):
    options = options_for(Alpha, isolate="", compile_timeout=60)

    with pytest.raises(
        PackageMissing,
        match=r"ep\.isolate=compile, which ep\.compile_timeout includes, needs the "
        "package epctx-isolation",
    ) as caught:
        compiled(tmp_path / "out", source(tmp_path), Alpha, options)

    assert caught.value.hint == pip_install("epctx-isolation")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_load_with_a_time_limit_for_compiles_needs_no_package(tmp_path):
    folder = compiled(
        tmp_path / "out", source(tmp_path), Alpha, options_for(Alpha, isolate="")
    )
    options = options_for(Alpha, isolate="", compile_timeout=60)

    with epctx.InferenceSession(
        folder / "m_ctx.onnx", options, registry=registry_of(Alpha)
    ) as session:
        assert session.get_providers()[0] == Alpha.name


def test_without_the_option_nothing_needs_the_package(tmp_path):
    written = compiled(
        tmp_path / "out", source(tmp_path), Alpha, options_for(Alpha, isolate="")
    )

    assert len(list(written.iterdir())) == 2
