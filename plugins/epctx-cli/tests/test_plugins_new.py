"""`epctx plugins new`. That what it writes works is shown in tests/templates/."""

from __future__ import annotations


def test_the_files_and_the_next_steps_are_told(process, tmp_path):
    said = process("plugins", "new", "acme")

    assert said.code == 0
    assert (tmp_path / "epctx-acme" / "pyproject.toml").is_file()
    assert "src/epctx_acme/provider.py" in said.out
    assert "pip install --editable 'epctx-acme[test]'" in said.out
    assert "epctx plugins check Acme" in said.out


def test_the_object_for_programs_has_the_names(process, tmp_path):
    said = process("plugins", "new", "acme-npu", "-o", tmp_path / "a" / "b", "--json")

    assert said.json["folder"] == str(tmp_path / "a" / "b" / "epctx-acme-npu")
    assert (said.json["distribution"], said.json["module"], said.json["ep"]) == (
        "epctx-acme-npu",
        "epctx_acme_npu",
        "AcmeNpuExecutionProvider",
    )
    assert "pyproject.toml" in said.json["files"]


def test_a_bad_name_is_wrong_usage(process, tmp_path):
    said = process("plugins", "new", "My_NPU")

    assert said.code == 2
    assert "cannot name a plugin" in said.err
    assert "Try 'my-npu'." in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused(process):
    process("plugins", "new", "acme")

    said = process("plugins", "new", "acme")

    assert said.code == 2
    assert "exists already" in said.err
    assert "Nothing was written" in said.err
