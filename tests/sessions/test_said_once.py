"""Options without effect are logged once in a process: names and keys that only tune,
options that only a real EP obeys.
"""

from __future__ import annotations

import onnxruntime
import pytest
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core import InvalidArgument
from epctx_core.options.strict import CHECKED

pytestmark = pytest.mark.internal


@pytest.fixture
def source(tmp_path):
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), tmp_path / "m.onnx")


@pytest.fixture
def told(caplog, monkeypatch):
    """Give what the logger for options says, as in a process that has said nothing
    yet.
    """
    monkeypatch.setattr("epctx_core.options.strict._logged", set())
    caplog.set_level("INFO", "epctx.options")
    return lambda: [r.message for r in caplog.records if r.name == "epctx.options"]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(o, n) for o, names in CHECKED.items() for n, (_, why) in names.items() if why],
)
def test_a_name_that_only_tunes_is_accepted_and_logged_once(owner, name, told):
    default, other = (
        getattr(getattr(onnxruntime, owner)(), name),
        {bool: False, int: 3, str: "x"},
    )
    made = getattr(epctx, owner)()
    assert getattr(made, name) == default
    value = (not default) if isinstance(default, bool) else other[type(default)]

    for options in (made, getattr(epctx, owner)()):
        setattr(options, name, default)
        setattr(options, name, value)

    assert getattr(made, name) == value
    (line,) = told()
    assert f"{owner}.{name} is accepted and has no effect" in line
    with pytest.raises(InvalidArgument, match=name):
        setattr(made, name, object())


def test_the_same_wishes_as_keys_of_sessions_and_runs_are_logged_once(told):
    for _ in range(2):
        options, run = epctx.SessionOptions(), epctx.RunOptions()
        options.add_session_config_entry("session.enable_mem_pattern", "0")
        run.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    assert run.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    assert len(told()) == 2
    with pytest.raises(InvalidArgument, match="never set"):
        run.get_run_config_entry("other")
    with pytest.raises(InvalidArgument, match="LoRA"):
        run.add_run_config_entry("qnn.lora_config", "adapter.txt")


@pytest.mark.parametrize(
    ("ep", "option"),
    [
        ("QNN", "backend_path"),
        ("QNN", "profiling_level"),
        ("OpenVINO", "device_id"),
        ("VitisAI", "xclbin"),
    ],
)
def test_what_only_the_real_ep_acts_on_is_accepted_and_logged_once(
    ep, option, source, tmp_path, told
):
    outputs = []
    for number, given in enumerate(
        ({}, {option: "libQnnHtp.so"}, {option: "QnnHtp.dll"})
    ):
        options = epctx.SessionOptions()
        options.add_provider(ep, given)
        output = tmp_path / f"{number}" / "m_ctx.onnx"
        epctx.ModelCompiler(options, source).compile_to_file(output)
        outputs.append(output.read_bytes())

    assert outputs[0] == outputs[1] == outputs[2]
    (line,) = told()
    assert (
        f"the option '{option}' of {ep}ExecutionProvider is accepted and has no effect"
        in line
    )
