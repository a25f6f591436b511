"""The exception tree: one base, one class for each code, messages that end in what to
do.
"""

from __future__ import annotations

import errno
import inspect
import pickle
import re
import subprocess
import sys

import pytest

import epctx_core
from epctx_core import errors
from epctx_core.errors import (
    EpctxError,
    ErrorCode,
    InvalidArgument,
    NoSuchFile,
    PluginError,
    suggestion,
)

pytestmark = pytest.mark.internal

CODES = {
    "Fail": 1,
    "InternalError": 1,
    "InvalidArgument": 2,
    "NoSuchFile": 3,
    "RuntimeException": 6,
    "InvalidProtobuf": 7,
    "NotImplementedByProvider": 9,
    "InvalidGraph": 10,
    "EPFail": 11,
    "ModelLoadCanceled": 12,
    "ModelRequiresCompilation": 13,
    "NotFound": 14,
    "PackageMissing": 14,
    "PluginError": 100,
}
CLASSES = [getattr(errors, name) for name in CODES]
EACH = pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)


def test_the_tree_is_the_one_drawn_at_the_top_of_the_file():
    drawn = re.findall(r"(?:\|--|`--) (\w+)", errors.__doc__)
    found = [
        name
        for name, cls in vars(errors).items()
        if inspect.isclass(cls)
        and issubclass(cls, EpctxError)
        and cls is not EpctxError
    ]

    assert sorted(drawn) == sorted(found) == sorted(CODES)
    below = {errors.InternalError: errors.Fail, errors.PackageMissing: errors.NotFound}
    assert all(cls.__mro__[1] is below.get(cls, EpctxError) for cls in CLASSES)


@EACH
def test_each_class_has_its_code(cls):
    assert cls.code == CODES[cls.__name__]
    assert isinstance(cls("m").code, ErrorCode)


def test_codes_are_those_of_onnxruntime():
    # OrtErrorCode in onnxruntime_c_api.h; ours is far away.
    assert [(c.name, c.value) for c in ErrorCode] == [
        ("FAIL", 1), ("INVALID_ARGUMENT", 2), ("NO_SUCHFILE", 3),
        ("RUNTIME_EXCEPTION", 6), ("INVALID_PROTOBUF", 7), ("NOT_IMPLEMENTED", 9),
        ("INVALID_GRAPH", 10), ("EP_FAIL", 11), ("MODEL_LOAD_CANCELED", 12),
        ("MODEL_REQUIRES_COMPILATION", 13), ("NOT_FOUND", 14), ("PLUGIN_ERROR", 100),
    ]  # fmt: skip


@EACH
def test_an_error_says_what_happened_and_what_to_do(cls):
    error = cls("it broke.", node="n", ep="E", path="/p", hint="Mend it.")

    assert str(error) == "it broke.\nMend it."
    assert (error.message, error.node, error.ep, error.path, error.hint) == (
        "it broke.",
        "n",
        "E",
        "/p",
        "Mend it.",
    )


@EACH
def test_an_error_without_a_hint_is_its_message(cls):
    assert str(cls("it broke.")) == "it broke."


def test_a_name_without_end_does_not_make_an_error_without_end():
    error = errors.InvalidGraph(f"no plugin for {'x' * 1_000_000!r}")

    assert len(str(error)) < 20_000
    assert error.message.startswith("no plugin for 'xxx")
    assert error.message.endswith("characters more]")


@EACH
def test_an_error_survives_the_way_between_two_processes(cls):
    error = cls("it broke.", node="n", path="/p", hint="Mend it.")

    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - what was pickled here

    assert type(back) is cls
    assert (str(back), back.node, back.path) == (str(error), "n", "/p")


def test_errors_survive_it_where_tblib_pickles_exceptions():
    """Dask makes it do so for all of a process."""
    script = (
        "import pickle, sys\n"
        "from epctx_core import errors\n"
        "import tblib.pickling_support\n"
        "tblib.pickling_support.install()\n"
        "for name in sys.argv[1:]:\n"
        "    error = getattr(errors, name)('it broke.', node='n', path='/p')\n"
        "    back = pickle.loads(pickle.dumps(error))\n"
        "    assert (str(back), back.node, back.path) == (str(error), 'n', '/p'), name\n"
    )
    names = [cls.__name__ for cls in CLASSES]

    subprocess.run([sys.executable, "-c", script, *names], check=True)


def test_what_python_programs_expect_to_catch_is_caught():
    with pytest.raises(ValueError, match="wrong"):
        raise InvalidArgument("wrong")
    with pytest.raises(FileNotFoundError) as caught:
        raise NoSuchFile("no such model", path="/p/m.onnx")

    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "/p/m.onnx")
    assert str(caught.value) == "no such model"


def test_a_plugins_error_names_what_failed():
    error = PluginError(
        "m", hook="compile", distribution="epctx-x", version="1.0", ep="E"
    )

    assert (error.hook, error.distribution, error.version, error.ep) == (
        "compile",
        "epctx-x",
        "1.0",
        "E",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("colr", " Did you mean 'color'?"),
        ("zzz", ""),
        ("", ""),
        ("color", " Did you mean 'color'?"),
    ],
)
def test_a_suggestion_is_the_closest_known_name(name, expected):
    assert suggestion(name, ["color", "shape"]) == expected
    assert suggestion(name, []) == ""


def test_a_message_is_one_printable_line_whatever_a_name_in_it_contains():
    error = errors.InvalidGraph(
        "node \x1b[2J\nok: nothing found\u202e\ud800.", hint="a\nb"
    )

    assert error.message == r"node \x1b[2J\nok: nothing found\u202e\ud800."
    assert str(error) == f"{error.message}\na\nb"
    assert errors.InvalidGraph("größe 猫").message == "größe 猫"


@pytest.mark.parametrize(
    "name",
    [
        "convert_model",
        "explain_model",
        "get_compatibility_info_from_model",
        "get_model_compatibility",
        "inspect_model",
        "load_or_compile",
        "seal_model",
        "verify_model",
    ],
)
@pytest.mark.parametrize(
    ("arguments", "keywords"), [(("m",), {"providerz": 1}), ((), {}), (("m",) * 9, {})]
)
def test_a_call_with_wrong_arguments_is_a_type_error_as_of_any_function(
    name, arguments, keywords
):
    with pytest.raises(TypeError, match="argument"):
        getattr(epctx_core, name)(*arguments, **keywords)


def test_a_type_error_within_a_function_is_a_mistake_of_ours():
    @errors.convert_errors("trying")
    def call_wrongly():
        return len(5)

    with pytest.raises(errors.InternalError, match="trying failed within epctx itself"):
        call_wrongly()
