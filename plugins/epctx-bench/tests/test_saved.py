import json

import pytest
from epctx_bench.saved import check_writable, load_report, save_report
from simulated_reports import report
from support.strange_files import STRANGE

from epctx_core.errors import Fail, InvalidArgument, NoSuchFile

pytestmark = pytest.mark.internal


def test_a_saved_report_is_loaded_again(tmp_path):
    path = tmp_path / "report.json"
    original = report([0.25, 0.5], [1.0, 2.0])
    save_report(report([1.0], [1.0]), path)
    save_report(original, path)

    assert load_report(path) == original
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()

    with pytest.raises(Fail, match="cannot be written"):
        save_report(report([1.0], [1.0]), tmp_path / "folder")
    (tmp_path / "file").touch()
    with pytest.raises(Fail, match="cannot be written"):
        save_report(report([1.0], [1.0]), tmp_path / "file" / "report.json")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


def test_a_missing_folder_is_created(tmp_path):
    path = tmp_path / "missing" / "report.json"
    check_writable(path)
    assert not path.parent.exists()

    save_report(report([1.0], [1.0]), path)
    assert load_report(path) == report([1.0], [1.0])


def test_what_cannot_be_written_is_said_before_it_is_measured(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(InvalidArgument, match="is a folder, not a file"):
        check_writable(tmp_path)
    with pytest.raises(InvalidArgument, match="is a folder, not a file"):
        check_writable(f"{tmp_path}/missing/")
    with pytest.raises(InvalidArgument, match="is not a folder"):
        check_writable(tmp_path / "file" / "report.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NoSuchFile, match="does not exist") as raised:
        load_report(tmp_path / "report.json")

    assert raised.value.path == tmp_path / "report.json"


def test_a_folder_is_not_a_report(tmp_path):
    with pytest.raises(Fail, match="cannot be read"):
        load_report(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_bytes(content)

    with pytest.raises(InvalidArgument, match="is not JSON"):
        load_report(path)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"schema": 2, "columns": []},
        {"schema": "1", "columns": []},
        {"schema": True, "columns": []},
    ],
)
def test_a_report_of_another_schema_is_refused(tmp_path, content):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))

    with pytest.raises(InvalidArgument, match="expected 1"):
        load_report(path)


@pytest.mark.parametrize(
    "columns",
    [
        None,
        {},
        [1],
        [{"rows": {}}],
        [{"name": "a", "rows": []}],
        [{"name": "a", "rows": {"run": {}}}],
        [{"name": "a", "rows": {"run": {"samples": [None]}}}],
        [{"name": "a", "rows": {"run": {"samples": [True]}}}],
        [{"name": "a", "rows": {}, "peer": 1}],
        [{"name": "a", "rows": {}}] * 2,
    ],
)
def test_columns_of_another_form_are_refused(tmp_path, columns):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"schema": 1, "columns": columns}))

    with pytest.raises(InvalidArgument, match="column"):
        load_report(path)


@pytest.mark.parametrize(
    "part", [{"noise": "busy"}, {"machine": ["x"]}, {"noise": [1]}, {"settings": [1]}]
)
def test_facts_of_another_form_are_refused(tmp_path, part):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report([1.0], [1.0]) | part))

    with pytest.raises(InvalidArgument, match=next(iter(part))):
        load_report(path)


@pytest.mark.parametrize("kind", STRANGE)
def test_a_file_that_could_not_be_read_to_its_end_is_no_report(kind, tmp_path):
    STRANGE[kind](tmp_path / "report.json")

    with pytest.raises((Fail, InvalidArgument), match="the saved report"):
        load_report(tmp_path / "report.json")
