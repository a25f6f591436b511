"""All names of a new plugin follow from one word, and bad ones are refused with the
reason.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.command_line import main
from support.folders import PLUGINS


def begun(word, folder, capsys):
    """Return what `epctx plugins new` says of a package, and the text of its module of
    programs and of its EP.
    """
    assert main(["plugins", "new", word, "-o", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    package = Path(said["folder"], "src", said["module"])
    return said, "".join(
        (package / name).read_text() for name in ("programs.py", "provider.py")
    )


def magic_in(text):
    (found,) = set(re.findall(r'KIND = "(\w+)"', text))
    return found


def test_the_names_follow_from_one_word(tmp_path, capsys):
    said, text = begun("acme", tmp_path, capsys)

    assert (said["distribution"], said["module"], said["ep"]) == (
        "epctx-acme",
        "epctx_acme",
        "AcmeExecutionProvider",
    )
    assert "class AcmeProvider(" in text
    assert magic_in(text) == "ACME0001"


def test_a_word_may_have_parts(tmp_path, capsys):
    said, _ = begun("acme-npu2", tmp_path, capsys)

    assert (said["distribution"], said["module"], said["ep"]) == (
        "epctx-acme-npu2",
        "epctx_acme_npu2",
        "AcmeNpu2ExecutionProvider",
    )


@pytest.mark.parametrize("word", ["x", "ab", "acme", "a-very-long-name-of-a-company"])
def test_a_payloads_first_eight_characters_are_always_eight(word, tmp_path, capsys):
    _, text = begun(word, tmp_path, capsys)

    assert len(magic_in(text)) == 8


@pytest.mark.parametrize(
    "word",
    [path.name.removeprefix("epctx-") for path in sorted(PLUGINS.glob("epctx-*"))],
)
def test_the_name_of_a_package_of_epctx_is_refused(word, tmp_path, capsys):
    assert main(["plugins", "new", word, "-o", str(tmp_path)]) == 2

    assert re.search("epctx's own|are reserved for", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "why", "hint"),
    [
        ("Acme", "lower-case letters", "'acme'"),
        ("My_NPU_2", "lower-case letters", "'my-npu-2'"),
        ("my_npu", "lower-case letters", "'my-npu'"),
        ("9lives", "begins with a letter", "'lives'"),
        ("../acme", "cannot name a plugin", "'acme'"),
        ("a--b", "single dashes", "'a-b'"),
        ("a" * 41, "1 to 40", "'aaaa"),
        ("", "cannot name a plugin", "'nimbus'"),
        ("epctx-acme", "put before it anyway", "'acme'"),
        ("core", "epctx's own", "device or company"),
        ("sim-acme", "epctx's own", "device or company"),
        ("qnn", "reserved for Qualcomm", "device or company"),
        ("openvino", "reserved for Intel", "device or company"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason_and_a_better_one(
    word, why, hint, tmp_path, capsys
):
    assert main(["plugins", "new", word, "-o", str(tmp_path)]) == 2

    said = capsys.readouterr().err
    assert why in said
    assert hint in said
    assert list(tmp_path.iterdir()) == []
