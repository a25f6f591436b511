"""Behaviours that onnxruntime has with its CPU EP alone, each as a function of one of
the two modules.

`entries` are numbers of the behaviour list (`tests/contract/README.md`); `differs`
is the matter, in the words of a page `differences-*.md`, of the row that
says that epctx does something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from differential.harness import HEAD, Harness

ROWS = np.array([[-1, 0, 2]], np.float32)
LINE = np.ones(512, np.float32)
ERROR_IF_NOTHING, ERROR_IF_EXISTS = 1, 2


@dataclass(frozen=True)
class Behaviour:
    """One of them.

    Attributes:
        name: the function's.
        act: does it; what it returns or raises is the outcome, with the files that
            appear.
        entries: of the behaviour list.
        differs: the matter of a listed difference, empty for none.
    """

    name: str
    act: Callable[[Harness], Any]
    entries: tuple[int, ...]
    differs: str


BEHAVIOURS: list[Behaviour] = []


def behaviour(
    *entries: int, differs: str = ""
) -> Callable[[Callable[[Harness], Any]], Callable[[Harness], Any]]:
    """Add a function to the behaviours."""

    def add(act: Callable[[Harness], Any]) -> Callable[[Harness], Any]:
        BEHAVIOURS.append(Behaviour(act.__name__, act, entries, differs))
        return act

    return add


def operators(path: str | Path) -> list[str]:
    return [
        node.op_type for node in onnx.load(path, load_external_data=False).graph.node
    ]


def held(path: str | Path) -> list[tuple[str, bool]]:
    """Return each initializer of a model and whether it lies in a file."""
    proto = onnx.load(path, load_external_data=False)
    return sorted((t.name, bool(t.external_data)) for t in proto.graph.initializer)


# --- options --------------------------------------------------------------------------

KEYS = "session option keys and values"
ARGUMENTS = "error classes of wrong arguments"
CALLBACK = "a callback that is none, or `max_data_size` not finite"
INVALID = "error classes of a model that is not valid"
WEIGHTS = "external weights that are missing, too short or outside of the folder"


@behaviour(differs=KEYS)
def a_misspelt_key(s):
    s.options(ep__context_enabel=1)


@behaviour(differs=KEYS)
def a_value_that_is_none(s):
    s.options(ep__context_embed_mode="banana")


@behaviour()
def a_key_of_the_host(s):
    return s.options(my__app="1").get_session_config_entry("my.app")


@behaviour()
def a_key_that_was_set(s):
    return s.options(ep__context_enable=1).get_session_config_entry("ep.context_enable")


@behaviour(differs=ARGUMENTS)
def a_key_that_is_too_long(s):
    s.options().add_session_config_entry("k" * 1025, "1")


@behaviour()
def a_long_value(s):
    s.options().add_session_config_entry("my.key", "v" * 8192)


@behaviour(differs=ARGUMENTS)
def a_value_that_is_too_long(s):
    s.options().add_session_config_entry("my.key", "v" * 8193)


@behaviour(differs=ARGUMENTS)
def a_key_that_was_never_set(s):
    s.options().get_session_config_entry("my.other")


@behaviour()
def defaults_of_session_options(s):
    o = s.ort.SessionOptions()
    names = (
        "enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse",
        "inter_op_num_threads", "intra_op_num_threads", "log_severity_level",
        "log_verbosity_level", "logid", "use_deterministic_compute",
        "use_per_session_threads",
    )  # fmt: skip
    return [getattr(o, name) for name in names if name != "log_severity_level"]


@behaviour()
def defaults_of_run_options(s):
    o = s.ort.RunOptions()
    return [
        o.log_severity_level,
        o.log_verbosity_level,
        o.logid,
        o.terminate,
        o.only_execute_path_to_fetches,
    ]


@behaviour()
def numbers_that_are_set(s):
    o = s.options()
    o.intra_op_num_threads, o.inter_op_num_threads = 3, 2
    return [o.intra_op_num_threads, o.inter_op_num_threads]


@behaviour(differs=ARGUMENTS)
def a_number_of_threads_that_is_a_text(s):
    s.options().intra_op_num_threads = "3"


@behaviour()
def options_without_a_provider(s):
    return s.options().has_providers()


@behaviour(134, differs="an unknown provider name; devices of two EPs in one call")
def a_provider_that_nobody_has(s):
    s.options().add_provider("NoSuchExecutionProvider", {})


@behaviour(differs="names of options and sessions that epctx does not have")
def names_that_epctx_lacks(s):
    o = s.options()
    o.optimized_model_filepath = ""
    return o.optimized_model_filepath


@behaviour()
def a_free_dimension(s):
    o = s.options()
    o.add_free_dimension_override_by_name("N", 4)
    return s.session(s.model(), o).get_inputs()[0].shape


@behaviour(
    differs="a length that the host fixed by name, in an output of which inference knows "
    "nothing"
)
def a_free_dimension_of_an_output(s):
    o = s.options()
    o.add_free_dimension_override_by_name("N", 4)
    reshaped = "(float[N] x, int64[1] s) => (float[N] y) { y = Reshape(x, s) }"
    return s.session(s.model(HEAD + reshaped), o).get_outputs()[0].shape


FREE = (
    "free dimension overrides for a name that no input has, of a length below 0, or "
    "twice with two lengths"
)


@behaviour(differs=FREE)
def a_free_dimension_that_no_input_has(s):
    o = s.options()
    o.add_free_dimension_override_by_name("M", 4)
    return s.session(s.model(), o).get_inputs()[0].shape


@behaviour(differs=FREE)
def a_free_dimension_below_zero(s):
    o = s.options()
    o.add_free_dimension_override_by_name("N", -2)


@behaviour(
    differs=(
        "`add_initializer` with an array; `add_external_initializers` for "
        "initializers inside the model"
    )
)
def an_initializer_given_as_an_array(s):
    o = s.options()
    o.add_initializer("w", np.zeros(512, np.float32))
    return s.session(s.weighted(external=True), o).run(None, {"x": LINE})[0][:2]


# --- compiling ------------------------------------------------------------------------

NOTHING = "no node compiled"


@behaviour(41)
def nothing_compiled_writes_a_model(s):
    s.compiler(s.model()).compile_to_file(s.out())
    return operators(s.out())


@behaviour(23, differs="`compile_to_file()` without a path")
def the_default_output(s):
    s.compiler(s.model()).compile_to_file()


@behaviour(10)
def a_model_to_bytes(s):
    data = s.compiler(s.model()).compile_to_bytes()
    return [node.op_type for node in onnx.load_from_string(data).graph.node]


@behaviour(11)
def bytes_to_a_file(s):
    data = Path(s.model()).read_bytes()
    s.compiler(data).compile_to_file(s.out())
    return operators(s.out())


@behaviour(7, 8, 9)
def a_model_to_a_stream(s):
    weight = "float[4, 9000] w = {" + ",".join(["1"] * 36000) + "}"
    text = (
        HEAD
        + f"(float[4, 9000] x) => (float[4, 9000] y) <{weight}> {{ y = Add(x, w) }}"
    )
    pieces = []
    s.compiler(s.model(text)).compile_to_stream(pieces.append)
    return [
        len(pieces) > 1,
        {len(p) for p in pieces[:-1]} == {65536},
        0 < len(pieces[-1]) <= 65536,
    ]


@behaviour(49, 50)
def a_stream_that_raises(s):
    s.compiler(s.model()).compile_to_stream(lambda _piece: 1 / 0)


@behaviour(39)
def nothing_compiled_under_the_flag(s):
    s.compiler(s.model(), flags=ERROR_IF_NOTHING).compile_to_file(s.out())


@behaviour(42)
def an_output_that_exists_under_the_flag(s):
    s.write("out.onnx", b"old")
    try:
        s.compiler(s.model(), flags=ERROR_IF_EXISTS).compile_to_file(s.out())
    finally:
        assert Path(s.out()).read_bytes() == b"old"


@behaviour(42)
def an_output_that_exists(s):
    s.write("out.onnx", b"old")
    s.compiler(s.model()).compile_to_file(s.out())
    return operators(s.out())


@behaviour(45)
def an_output_that_ends_in_a_slash(s):
    s.compiler(s.model()).compile_to_file(s.out("sub/"))


@behaviour(45)
def an_output_without_an_extension(s):
    s.compiler(s.model()).compile_to_file(s.out("sub"))


@behaviour(45)
def an_output_of_a_session_that_is_a_folder(s):
    s.session(
        s.model(), s.options(ep__context_enable=1, ep__context_file_path=s.out("sub/"))
    )


@behaviour(40)
def a_session_that_compiles_nothing(s):
    o = s.options(ep__context_enable=1, ep__context_file_path=s.out())
    return s.session(s.model(), o).run(None, {"x": ROWS})


@behaviour(differs=KEYS)
def context_enable_as_a_word(s):
    return s.session(s.model(), s.options(ep__context_enable="true")).run(
        None, {"x": ROWS}
    )


@behaviour(46)
def a_session_from_bytes_without_an_output(s):
    s.session(Path(s.model()).read_bytes(), s.options(ep__context_enable=1))


@behaviour(51, differs="missing output folder")
def a_missing_output_folder(s):
    s.compiler(s.model()).compile_to_file(s.out("none/out.onnx"))


@behaviour(52, differs="a missing source; an empty path")
def a_missing_source(s):
    s.compiler(s.out("none.onnx")).compile_to_file(s.out())


@behaviour(52)
def an_empty_source(s):
    s.compiler("")


@behaviour(52)
def a_source_of_junk(s):
    s.compiler(b"junk").compile_to_file(s.out())


@behaviour(25)
def paths_as_objects(s):
    s.compiler(Path(s.model())).compile_to_file(Path(s.out()))


@behaviour(25, differs="a `bytearray` or `memoryview` as model")
def a_source_as_bytearray(s):
    s.compiler(bytearray(Path(s.model()).read_bytes()))


@behaviour(26, differs="the output is the input")
def an_output_that_is_the_input(s):
    path = s.model()
    s.compiler(path).compile_to_file(path)


@behaviour(27)
def names_with_spaces_and_umlauts(s):
    s.compiler(s.model(name="ein Mödell.onnx")).compile_to_file(
        s.out("übersetzt so.onnx")
    )
    return operators(s.out("übersetzt so.onnx"))


@behaviour(24)
def one_compiler_twice(s):
    made = s.compiler(s.model())
    made.compile_to_file(s.out("a.onnx"))
    made.compile_to_file(s.out("b.onnx"))
    return [operators(s.out("a.onnx")), operators(s.out("b.onnx"))]


@behaviour(53)
def a_compile_within_a_compile(s):
    made = s.compiler(s.model())
    kinds = []

    def again(_piece):
        try:
            made.compile_to_bytes()
        except Exception as error:  # noqa: BLE001 - its class is what counts
            kinds.append(type(error).__name__)

    made.compile_to_stream(again)
    return kinds


@behaviour(53, differs="changing the write callback while a compile runs")
def the_write_callback_changed_within_a_compile(s):
    made = s.compiler(s.model())
    errors = []

    def change(_piece):
        try:
            made.clear_ep_context_data_write_func()
        except Exception as error:  # noqa: BLE001 - told below
            errors.append(error)

    made.compile_to_stream(change)
    raise errors[0]


@behaviour(21)
def casts_that_a_level_drops(s):
    casts = "".join(
        f"v{i + 1} = Cast<to = {(1, 10)[i % 2]}>(v{i}) " for i in range(1, 5)
    )
    text = HEAD + f"(float[3] x) => (float[3] y) {{ v1 = Relu(x) {casts} y = Neg(v5) }}"
    counts = []
    for level in (
        s.ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
        s.ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ):
        data = s.compiler(
            s.model(text), graph_optimization_level=level
        ).compile_to_bytes()
        counts.append(
            sum(n.op_type == "Cast" for n in onnx.load_from_string(data).graph.node)
        )
    return counts


@behaviour(differs="`ModelCompiler(graph_optimization_level=ORT_ENABLE_ALL)` or LAYOUT")
def a_level_for_this_machine(s):
    level = s.ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    s.compiler(s.model(), graph_optimization_level=level).compile_to_file(s.out())


@behaviour(22)
def an_outer_initializer_that_only_a_body_reads(s):
    text = (
        HEAD + "(bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}>"
        " { y = If(c) <then_branch = t () => (float[2] a) { a = Add(x, w) },"
        " else_branch = e () => (float[2] b) { b = Neg(x) }> }"
    )
    s.compiler(s.model(text)).compile_to_file(s.out())
    feeds = {"c": np.array(True), "x": np.zeros(2, np.float32)}
    return [held(s.out()), s.session(s.out()).run(None, feeds)]


@behaviour(16)
def the_order_of_inputs(s):
    text = HEAD + (
        "(float[2] late, float[2] early) => (float[2] y) { a = Relu(early) y = "
        "Sub(a, late) }"
    )
    s.compiler(s.model(text)).compile_to_file(s.out())
    return [i.name for i in onnx.load(s.out()).graph.input]


def with_facts(proto):
    proto.producer_name, proto.model_version = "somebody", 7
    proto.metadata_props.add(key="author", value="nobody")


@behaviour()
def metadata_that_is_kept(s):
    s.compiler(s.model(edit=with_facts)).compile_to_file(s.out())
    return [p.value for p in onnx.load(s.out()).metadata_props if p.key == "author"]


@behaviour()
def who_made_the_model(s):
    s.compiler(s.model(edit=with_facts)).compile_to_file(s.out())
    proto = onnx.load(s.out())
    return [proto.producer_name, proto.model_version, proto.ir_version]


@behaviour(
    differs="an argument of `ModelCompiler` of a wrong kind; unknown bits in `flags`"
)
def unknown_flags(s):
    s.compiler(s.model(), flags=64).compile_to_file(s.out())


@behaviour(118, 120, 127, differs=CALLBACK)
def a_write_callback_that_is_none(s):
    s.compiler(s.model()).set_ep_context_data_write_func(None)


@behaviour(120, differs=CALLBACK)
def a_read_callback_without_a_limit(s):
    s.options().set_ep_context_data_read_func(lambda _name, _buffer: None, 0)


@behaviour(118)
def a_read_callback_set_and_cleared(s):
    o = s.options()
    o.set_ep_context_data_read_func(lambda _name, _buffer: None, 1024)
    o.clear_ep_context_data_read_func()
    return s.session(s.model(), o).run(None, {"x": ROWS})


@behaviour(66)
def compiling_forbidden_without_an_ep_that_compiles(s):
    o = s.options(session__disable_model_compile=1)
    s.compiler(s.model(), o).compile_to_file(s.out())
    return s.session(s.out(), o).run(None, {"x": ROWS})


@behaviour()
def a_compile_that_was_cancelled_before(s):
    o = s.options()
    o.set_load_cancellation_flag(True)
    s.compiler(s.model(), o).compile_to_file(s.out())


# --- initializers ---------------------------------------------------------------------


@behaviour(37)
def weights_in_a_file(s):
    s.compiler(s.weighted(), external_initializers_file_path="w.bin").compile_to_file(
        s.out()
    )
    return [held(s.out()), s.session(s.out()).run(None, {"x": LINE})[0][:3]]


@behaviour(30)
def external_weights_without_a_file_named(s):
    s.compiler(s.weighted(external=True)).compile_to_file(s.out())
    return held(s.out())


@behaviour(29)
def external_weights_into_another_file(s):
    s.compiler(
        s.weighted(external=True), external_initializers_file_path="n.bin"
    ).compile_to_file(s.out())
    Path(s.out("w.data")).unlink()
    return s.session(s.out()).run(None, {"x": LINE})[0][:3]


@behaviour(36, differs="an absolute name for external initializers")
def an_absolute_file_for_weights(s):
    s.compiler(
        s.weighted(), external_initializers_file_path=s.out("w.bin")
    ).compile_to_file(s.out())


EMPTY = "an empty name for external initializers; one in a folder that does not exist"


@behaviour(36, differs=EMPTY)
def an_empty_name_for_weights(s):
    s.compiler(s.weighted(), external_initializers_file_path="").compile_to_file(
        s.out()
    )


@behaviour(36, differs=EMPTY)
def a_file_for_weights_in_a_missing_folder(s):
    s.compiler(
        s.weighted(), external_initializers_file_path="sub/w.bin"
    ).compile_to_file(s.out())


@behaviour(35)
def a_file_and_a_function_for_weights(s):
    s.compiler(
        s.weighted(),
        external_initializers_file_path="w.bin",
        get_initializer_location_func=print,
    )


@behaviour(32)
def a_function_that_keeps_all_weights(s):
    seen = []

    def keep(name, value, info):
        seen.append((name, list(value.shape()), info is None))

    s.compiler(s.weighted(), get_initializer_location_func=keep).compile_to_file(
        s.out()
    )
    return [sorted(seen), held(s.out())]


@behaviour(34)
def a_function_that_places_weights(s):
    Path(s.out("own.bin")).write_bytes(np.arange(512, dtype=np.float32).tobytes())

    def place(name, _value, _info):
        return (
            s.ort.OrtExternalInitializerInfo("own.bin", 0, 2048)
            if name == "w"
            else None
        )

    s.compiler(s.weighted(), get_initializer_location_func=place).compile_to_file(
        s.out()
    )
    return [held(s.out()), s.session(s.out()).run(None, {"x": LINE})[0][:3]]


@behaviour(33)
def a_function_that_is_told_where_weights_lie(s):
    seen = []

    def look(name, _value, info):
        seen.append(
            (
                name,
                None
                if info is None
                else (Path(info.filepath).name, info.file_offset, info.byte_size),
            )
        )

    s.compiler(
        s.weighted(external=True), get_initializer_location_func=look
    ).compile_to_file(s.out())
    return sorted(seen, key=str)


@behaviour(differs=WEIGHTS)
def external_weights_that_are_missing(s):
    path = s.weighted(external=True)
    Path(s.out("w.data")).unlink()
    s.session(path)


@behaviour(differs=WEIGHTS)
def external_weights_that_are_too_short(s):
    path = s.weighted(external=True)
    Path(s.out("w.data")).write_bytes(b"1234")
    s.session(path)


@behaviour(differs=WEIGHTS)
def external_weights_outside_of_the_folder(s):
    s.session(s.weighted(external=True, location="../w.data"))


@behaviour()
def external_weights_of_a_model_from_bytes(s):
    data = Path(s.weighted(external=True)).read_bytes()
    o = s.options(session__model_external_initializers_file_folder_path=s.folder)
    return s.session(data, o).run(None, {"x": LINE})[0][:3]
