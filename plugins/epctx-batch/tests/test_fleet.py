"""The file of a batch: what it says, and what is refused before anything is compiled."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from epctx_batch import read_fleet

from epctx_core.errors import InvalidArgument, NoSuchFile

MODEL = '[[model]]\npath = "a.onnx"\n'
TARGET = '[[target]]\nname = "t"\neps = ["QNN"]\n'


@pytest.fixture
def fleet(tmp_path):
    """Write a fleet beside two files that are called as models are, and read it."""
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).touch()

    def read(text, name="fleet.toml"):
        path = tmp_path / name
        path.write_text(text)
        return read_fleet(path)

    return read


def test_each_model_is_a_task_for_each_target_in_the_order_of_the_file(fleet):
    found = fleet(
        '[[model]]\npath = "*.onnx"\n'
        '[[target]]\nname = "z"\neps = ["QNN"]\n'
        '[[target]]\nname = "y"\neps = ["VitisAI", "QNN"]\n'
    )

    tasks = [(task.model.rpartition("/")[2], task.target) for task in found.tasks]
    assert tasks == [("a.onnx", "z"), ("a.onnx", "y"), ("b.onnx", "z"), ("b.onnx", "y")]
    assert found.tasks[1].eps == ["VitisAI", "QNN"]
    assert len({task.id for task in found.tasks}) == 4


def test_a_list_of_values_makes_a_target_for_each_combination(fleet):
    found = fleet(
        f"{MODEL}{TARGET}options.QNN = {{htp_arch = [73, 75], soc_model = 60, x = [1, 2]}}"
    )

    assert [(task.target, dict(task.options["QNN"])) for task in found.tasks] == [
        (f"t htp_arch={arch} x={x}", {"htp_arch": arch, "soc_model": "60", "x": x})
        for arch in ("73", "75")
        for x in ("1", "2")
    ]


def test_options_of_a_target_go_before_those_of_a_model_and_of_all(fleet):
    found = fleet(
        "[batch]\nconfig = {a = 1, b = 1, c = true}\n"
        f"{MODEL}config = {{a = 2, b = 2}}\n{TARGET}config = {{a = 3}}\n"
    )

    assert found.tasks[0].config == {"a": "3", "b": "2", "c": "1"}


def test_lengths_of_a_target_go_before_those_of_a_model(fleet):
    found = fleet(
        f"{MODEL}free_dimensions = {{batch = 1, height = 320}}\n"
        f'{TARGET}free_dimensions = {{batch = 4, "p2o.Dimension.0" = 8}}\n'
    )

    assert found.tasks[0].free_dimensions == {
        "batch": 4,
        "height": 320,
        "p2o.Dimension.0": 8,
    }


def test_a_task_has_the_same_id_wherever_the_folder_lies(tmp_path):
    ids = []
    for place in ("one", "two"):
        folder = tmp_path / place
        folder.mkdir()
        (folder / "a.onnx").touch()
        (folder / "fleet.toml").write_text(MODEL + TARGET)
        ids.append(read_fleet(folder / "fleet.toml").tasks[0].id)

    assert ids[0] == ids[1]


def test_names_of_models_and_targets_name_no_other_folder(fleet):
    found = fleet(f'{MODEL}[[target]]\nname = "../../{"x" * 300}"\neps = ["QNN"]\n')

    (task,) = found.tasks
    assert "/" not in task.id
    assert len(task.id) < 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "cannot be read as TOML"),
        ("", r"there is no \[\[model\]\]"),
        (MODEL, r"there is no \[\[target\]\]"),
        (f"{MODEL}{TARGET}x = 1", "has no key 'x'; there are name, eps"),
        (f"[other]\n{MODEL}{TARGET}", "unknown table 'other'"),
        (f"model = 1\n{TARGET}", r"there is no \[\[model\]\]"),
        (f"model = [1]\n{TARGET}", "'model' is no table"),
        (f"[[model]]\n{TARGET}", "has no 'path'"),
        (f"{MODEL}[[target]]\nname = 't'\neps = []", "has no 'eps'"),
        (f"{MODEL}[[target]]\nname = 't'\neps = [1]", "'eps' of target 't'"),
        (f"{MODEL}{TARGET}{TARGET}", "two targets are called 't'"),
        (f"{MODEL}{MODEL}{TARGET}", "the model '.*a.onnx' is listed twice"),
        (f"[batch]\ntimeout = 0\n{MODEL}{TARGET}", "expected more than 0"),
        (f"[batch]\nworkers = true\n{MODEL}{TARGET}", "'workers' of .* is True"),
        (
            f"[batch]\nallow_uncompiled = 1\n{MODEL}{TARGET}",
            r"'allow_uncompiled' of \[batch\] is 1, expected true or false",
        ),
        (
            f"[batch]\nworkers = 1.5\n{MODEL}{TARGET}",
            r"'workers' of \[batch\] is 1.5, expected a whole number",
        ),
        (f"{MODEL}{TARGET}options.VitisAI.x = 1", "none of its EPs: QNN"),
        (f"{MODEL}{TARGET}options.QNN.x = [[1]]", "expected a text or a number"),
        (f"{MODEL}{TARGET}config.x = {{}}", "expected a text or a number"),
        (
            f'{MODEL}free_dimensions = {{height = "320"}}\n{TARGET}',
            r"'height' in 'free_dimensions' of \[\[model\]\] is '320', expected a whole",
        ),
        (f"{MODEL}{TARGET}free_dimensions.batch = -1", "'batch' .* is -1, expected"),
        (f"{MODEL}{TARGET}free_dimensions.batch = true", "'batch' .* is True"),
        (
            f"{MODEL}{TARGET}options.QNN.x = []",
            "option 'x' of target 't' has no values",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_name_of_the_file(fleet, text, said):
    with pytest.raises(InvalidArgument, match=said) as raised:
        fleet(text)

    assert "fleet.toml" in str(raised.value)


@pytest.mark.parametrize("pattern", ["none.onnx", "none/*.onnx", "/"])
def test_a_pattern_without_a_model_is_an_error(fleet, pattern):
    with pytest.raises(NoSuchFile, match="there is no model"):
        fleet(f'[[model]]\npath = "{pattern}"\n{TARGET}')


def test_a_pattern_finds_nothing_that_the_batch_wrote(fleet, tmp_path):
    for folder in ("out/task", "cache/v1"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model_ctx.onnx").touch()

    found = fleet(
        '[batch]\noutput = "out"\ncache_dir = "cache"\n'
        f'[[model]]\npath = "**/*.onnx"\n{TARGET}'
    )
    assert [task.model.rpartition("/")[2] for task in found.tasks] == [
        "a.onnx",
        "b.onnx",
    ]

    with pytest.raises(NoSuchFile, match="there is no model"):
        fleet(f'[batch]\noutput = "."\n[[model]]\npath = "*.onnx"\n{TARGET}')


def test_a_name_that_looks_like_a_pattern_is_a_name(fleet, tmp_path):
    (tmp_path / "a[1].onnx").touch()

    (task,) = fleet(f'[[model]]\npath = "a[1].onnx"\n{TARGET}').tasks

    assert task.model == str(tmp_path / "a[1].onnx")


def test_paths_begin_in_the_folder_of_the_file_or_at_home(fleet, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    (task,) = fleet(
        '[batch]\noutput = "~/out"\ncache_dir = "cache"\nshared_cache = "shared"\n'
        f"{MODEL}{TARGET}"
    ).tasks

    assert task.folder == str(tmp_path / "home" / "out" / task.id)
    assert task.cache_dir == str(tmp_path / "cache")
    assert task.shared_cache == str(tmp_path / "shared")


def test_a_mistyped_address_of_a_shared_cache_is_no_folder(fleet):
    with pytest.raises(InvalidArgument, match="neither an address such as"):
        fleet(f'[batch]\nshared_cache = "s3//bucket/team"\n{MODEL}{TARGET}')


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(NoSuchFile, match=r"none\.toml"):
        read_fleet(tmp_path / "none.toml")


def test_more_tasks_than_a_batch_may_have_are_counted_before_they_are_made(fleet):
    options = ", ".join(f"o{n} = {list(range(10))}" for n in range(9))

    with pytest.raises(InvalidArgument, match="1,000,000,000 targets") as caught:
        fleet(f"{MODEL}{TARGET}options.QNN = {{{options}}}")

    assert "at most" in str(caught.value)


def test_an_endless_file_is_an_error():
    with pytest.raises(InvalidArgument, match="not a regular file"):
        read_fleet(Path("/dev/zero"))


def test_a_folder_that_cannot_be_searched_is_an_error_of_the_file(fleet, monkeypatch):
    def refuse(_folder, _pattern):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "glob", refuse)

    with pytest.raises(InvalidArgument, match=r"fleet\.toml.*Input/output error"):
        fleet(f'[[model]]\npath = "*.onnx"\n{TARGET}')
