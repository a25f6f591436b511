"""How `epctx doctor` judges the versions of libraries."""

from __future__ import annotations

import pytest
from epctx_cli.commands.doctor import check_library
from epctx_cli.libraries import within
from epctx_cli.plugin_results import Library
from packaging.specifiers import SpecifierSet
from support.install_commands import pip_install

pytestmark = pytest.mark.internal


def test_what_is_missing_or_too_old_is_told_with_the_command_that_fixes_it():
    libraries = [
        library("onnx", version="1.20", fits=False),
        library("no-such-sdk"),
        library("no-such-library", user="epctx-onnxruntime", extra="ort"),
        library("no-such-package", extra="openvino"),
    ]
    remarks = [remark for each in libraries for remark in check_library(each)]

    assert [(r.severity, r.hint) for r in remarks] == [
        ("problem", "pip install 'onnx>=1.23'"),
        ("problem", "pip install 'no-such-sdk>=1.23'"),
        ("note", pip_install("epctx-onnxruntime[cpu]")),
    ]


def test_a_folder_that_pip_left_of_a_library_does_not_provide_it(tmp_path, monkeypatch):
    (tmp_path / "no_such_library").mkdir()
    (tmp_path / "no_such_library" / "stray.txt").touch()
    monkeypatch.syspath_prepend(tmp_path)

    (remark,) = check_library(
        library("no-such-library", user="epctx-onnxruntime", extra="ort")
    )

    assert remark.message == "no-such-library is not installed (fast CPU kernels)."


def test_a_library_that_another_distribution_provides_is_there_in_an_unknown_version():
    (remark,) = check_library(library("pluggy"))

    assert remark.severity == "note"
    assert remark.message.startswith("pluggy is provided by a distribution of another")


def test_a_library_with_a_dot_in_its_name_may_be_missing():
    (remark,) = check_library(library("no_such.sdk", user="epctx-acme"))

    assert remark.severity == "problem"
    assert remark.message == "no_such.sdk, which epctx-acme needs, is not installed."


@pytest.mark.parametrize(
    ("version", "bounds", "verdict"),
    [
        ("1.23.0", ">=1.23", True),
        ("1.22.9", ">=1.23", False),
        ("1.100", ">=1.23", True),
        ("2.0", ">=1.26,<2", False),
        ("1.24rc1", ">=1.24", False),
        ("1.25rc1", ">=1.24", True),
        ("1.31.1+cpu", ">=1.31", True),
        ("1.0.0", "==1.0", True),
        ("7", "", True),
        ("2.1", "~=2.0", True),
        ("1.0", "~=2.0", False),
        ("3.0", "~=2.0", False),
        ("1.5.3", "==1.5.*", True),
        ("1!1.0", "<2", False),
        ("built by hand", ">=1.0", False),
    ],
)
def test_versions_are_compared_as_pip_does(version, bounds, verdict):
    assert within(version, SpecifierSet(bounds)) is verdict


def library(name, *, user="epctx-core", version=None, fits=None, extra=None):
    return Library(
        name=name,
        user=user,
        required=">=1.23",
        extra=extra,
        version=version,
        fits=fits,
    )
