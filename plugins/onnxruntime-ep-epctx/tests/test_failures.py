"""Faults of EPs, options and files: a typed error each, and never an answer from the CPU.

Alike cases share a process, which prints what each of them raised.
"""

from __future__ import annotations

import json

import pytest
from onnx import helper
from onnxruntime_ep_epctx import library
from onnxruntime_ep_epctx.capi import StatusError
from programs import run_program
from support.installed import install_distribution

FAULTY = "FaultyExecutionProvider"
LABEL = f"{FAULTY} (registered by the host)"
HOOKED = "HookedExecutionProvider (registered by the host)"
WAYS = ("open_session", "open_by_name")
"""By devices, and by the name of the EP."""

BEGIN = """
import json, pathlib, sys
import hosting
from hosting import *

folder = pathlib.Path(sys.argv[1])
path = make_model(folder / "small.onnx")
offer()
WAYS = (open_session, open_by_name)
found = {}
"""
END = """
print(json.dumps(found))
"""


def find_failures(text, folder, **arguments):
    """Run a program that fills `found`; return that."""
    output = run_program(BEGIN + text + END, folder, **arguments)
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hosted")


# -- faults of EPs before a run ------------------------------------------------------------

HOOKS = """
context = compile_model(path, folder / "context.onnx", embeds=True)
faults = {
    "constructor": MemoryError("no device memory"),
    "get_capability": KeyError("no such operator"),
    "compile": ZeroDivisionError("no tiles"),
    "load_context": OSError("no magic"),
    "availability": "the chip is missing",
}
for hook, error in faults.items():
    FAULTS[hook] = error
    for way in WAYS:
        opened = context if hook == "load_context" else path
        raised = run_attempt(way, opened, FAULTY)
        last = bridge.last_error()
        found[f"{hook} {way.__name__}"] = [raised, type(last).__name__, repr(last.__cause__)]
    FAULTS.clear()
found["afterwards"] = [is_right(way(path, FAULTY)) for way in WAYS]
"""


@pytest.fixture(scope="module")
def hooks(folder):
    return find_failures(HOOKS, folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("hook", "text", "cause"),
    [
        ("constructor", "__init__: MemoryError: no device memory", "MemoryError('no d"),
        ("get_capability", "get_capability: KeyError: 'no such", "KeyError('no such"),
        ("compile", "compile: ZeroDivisionError: no tiles", "ZeroDivisionError('no t"),
        ("load_context", "load_context: OSError: no magic", "OSError('no magic"),
    ],
)
def test_an_ep_that_raises_ends_the_session_with_its_name_and_hook(
    hooks, hook, text, cause, way
):
    (kind, message), last, last_cause = hooks[f"{hook} {way}"]

    assert kind == "EPFail"
    assert f"{LABEL} failed in {text}" in message
    assert last == ("EPFail" if hook == "compile" else "PluginError")
    assert last_cause.startswith(cause)


@pytest.mark.parametrize("way", WAYS)
def test_an_ep_that_is_not_available_says_why(hooks, way):
    (kind, message), *_ = hooks[f"availability {way}"]

    assert kind == "NotImplemented"
    assert f"{FAULTY} cannot run on this machine: the chip is missing." in message


def test_sessions_can_be_made_once_a_fault_is_gone(hooks):
    assert hooks["afterwards"] == [True, True]


# -- faults of other hooks -----------------------------------------------------------------

OTHER_HOOKS = """
from onnxruntime.capi import onnxruntime_pybind11_state as state

offer(HookedProvider)
fault = ZeroDivisionError("no tiles")
context = compile_model(path, folder / "hooked.onnx", embeds=True, ep=HOOKED)
validate = state.get_model_compatibility_for_ep_devices

def note(hook, call, *arguments, **options):
    FAULTS[hook] = fault
    raised = attempt(call, *arguments, **options)
    FAULTS.clear()
    key = f"{hook} {way.__name__}"
    found[key] = [raised, session.get_providers(), is_right(session)]

for way in WAYS:
    session = way(path, HOOKED)
    note("on_run_start", run_once, session)
    note("on_run_end", run_once, session)
    note("set_dynamic_options", session.set_ep_dynamic_options, {"ep.dynamic.pace": "2"})
    for hook in ("get_ep_context_nodes", "get_compatibility_info"):
        out = folder / "out.onnx"
        note(hook, compile_model, path, out, embeds=True, ep=HOOKED, way=way)
        found[f"{hook} {way.__name__}"].append(out.exists())
    note("validate_compatibility", way, context, HOOKED)

devices = list_devices(HOOKED)
FAULTS["validate_compatibility"] = fault
found["validate"] = attempt(validate, devices, "made by version 1")
FAULTS.clear()
texts = ("made by version 1", "made by version 2")
found["verdicts"] = [validate(devices, text).name for text in texts]

CALLS.clear()
options = onnxruntime.RunOptions()
options.add_run_config_entry("a", "b")
options.logid = "the tag"
session.set_ep_dynamic_options({"ep.dynamic.pace": "2"})
session.run(None, {"x": X}, options)
FAULTS["shutdown"] = fault
del session
found["calls"] = CALLS
FAULTS.clear()
"""


@pytest.fixture(scope="module")
def other_hooks(folder):
    return find_failures(OTHER_HOOKS, folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", ["on_run_start", "on_run_end"])
def test_a_fault_of_a_hook_around_runs_does_not_move_the_session_to_the_cpu(
    other_hooks, hook, way
):
    (kind, message), providers, works = other_hooks[f"{hook} {way}"]

    assert kind == "RuntimeException"
    assert f"{HOOKED} failed in {hook}: ZeroDivisionError: no tiles" in message
    assert providers[0] == "HookedExecutionProvider"
    assert works


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        # onnxruntime's Python API has no other exception for this call.
        ("set_dynamic_options", "RuntimeError"),
        ("get_ep_context_nodes", "EPFail"),
        ("get_compatibility_info", "EPFail"),
        ("validate_compatibility", "EPFail"),
    ],
)
def test_a_fault_of_another_hook_is_raised_by_the_call_that_needs_it(
    other_hooks, hook, expected, way
):
    (kind, message), providers, works, *is_written = other_hooks[f"{hook} {way}"]

    assert kind == expected
    assert f"{HOOKED} failed in {hook}: ZeroDivisionError: no tiles" in message
    assert providers[0] == "HookedExecutionProvider"
    assert works
    assert not any(is_written)


def test_a_fault_of_a_validation_that_onnxruntime_asks_for_names_the_ep(other_hooks):
    _, message = other_hooks["validate"]

    assert f"{HOOKED} failed in validate_compatibility: ZeroDivision" in message
    assert other_hooks["verdicts"] == ["EP_SUPPORTED_OPTIMAL", "EP_UNSUPPORTED"]


def test_hooks_are_called_once_with_their_arguments_and_a_fault_at_the_end_is_survived(
    other_hooks,
):
    assert other_hooks["calls"] == [
        ["set_dynamic_options", {"pace": "2"}],
        ["on_run_start", "the tag"],
        ["on_run_end", "the tag"],
        ["shutdown"],
    ]


# -- what cannot be claimed ----------------------------------------------------------------

CLAIMS = """
class SecondProvider(FaultyProvider):
    name = "SecondExecutionProvider"
    takes = ("Neg",)

    @hookimpl
    def get_capability(self, graph):
        hosting._raise("second")
        return super().get_capability(graph)

offer(SecondProvider)

def open_both(path):
    options = onnxruntime.SessionOptions()
    for ep in (FAULTY, SecondProvider.name):
        options.add_provider_for_devices(list_devices(ep), {})
    return onnxruntime.InferenceSession(path, options)

found["both"] = is_right(open_both(path))
FAULTS["second"] = ZeroDivisionError("no tiles")
found["second"] = run_attempt(open_both, path)
FAULTS.clear()

for hook in ("constructor", "get_capability", "compile"):
    FAULTS[hook] = KeyboardInterrupt()
    found[hook] = [run_attempt(way, path, FAULTY) for way in WAYS]
    FAULTS.clear()

dynamic = make_model(folder / "names.onnx", shape=("nn", 32))
data = pathlib.Path(dynamic).read_bytes()
for name in ("nn", "n1", "v1"):
    model = folder / "named.onnx"
    model.write_bytes(data.replace(name.encode(), bytes([255, 254])))
    found[name] = [run_attempt(way, str(model), FAULTY) for way in WAYS]
    found[f"{name} last"] = repr(bridge.last_error())
"""


@pytest.fixture(scope="module")
def claims(folder):
    return find_failures(CLAIMS, folder)


def test_a_fault_behind_the_claims_of_another_ep_is_raised(claims):
    kind, message = claims["second"]

    assert claims["both"]
    assert kind == "EPFail"
    assert "SecondExecutionProvider (registered by the host) failed in" in message
    assert "ZeroDivisionError: no tiles" in message


@pytest.mark.parametrize("hook", ["constructor", "get_capability", "compile"])
def test_ctrl_c_while_a_session_is_made_does_not_make_it_on_the_cpu(claims, hook):
    for kind, message in claims[hook]:
        assert kind == "Fail"
        assert "KeyboardInterrupt" in message


@pytest.mark.parametrize("name", ["n1", "v1"])
def test_names_that_no_ep_can_read_are_refused(claims, name):
    for kind, message in claims[name]:
        assert kind == "InvalidGraph"
        assert "a name in the model is not UTF-8" in message


def test_a_dimension_may_have_any_name(claims):
    assert claims["nn"] == [None, None]
    assert "KeyboardInterrupt" in claims["nn last"]


# -- options -------------------------------------------------------------------------------

OPTIONS = """
other = make_model(folder / "other.onnx", operators=("Neg",))
prefix = f"ep.{FAULTY.lower()}."
cases = {
    "choice": (path, {"level": "3"}, {}),
    "type": (path, {"level": "high"}, {}),
    "unknown": (path, {"lvel": "1"}, {}),
    "entry": (path, {}, {prefix + "level": "9"}),
    "right": (path, {"level": "2"}, {}),
    "strict": (other, {"epctx_strict": "1"}, {}),
    "strict entry": (other, {}, {prefix + "epctx_strict": "1"}),
    "not strict": (other, {"epctx_strict": "0"}, {}),
    "strict taken": (path, {"epctx_strict": "1"}, {}),
    **{
        key: (path, {}, {key: "1"})
        for key in (
            "ep.share_ep_contexts",
            "ep.stop_share_ep_contexts",
            "ep.enable_weightless_ep_context_nodes",
            "ep.enable_weightless_mode",
        )
    },
}
for case, (model, options, entries) in cases.items():
    for way in WAYS:
        LEVELS.clear()
        raised = run_attempt(way, model, FAULTY, options, entries)
        found[f"{case} {way.__name__}"] = [raised, LEVELS[-1:]]
"""


@pytest.fixture(scope="module")
def options(folder):
    return find_failures(OPTIONS, folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("choice", f"{FAULTY}: option 'level' is '3'; allowed: 1, 2."),
        ("type", f"{FAULTY}: option 'level' needs a whole number, not 'high'."),
        ("unknown", f"{FAULTY} has no option 'lvel'. Did you mean 'level'?"),
        ("entry", f"{FAULTY}: option 'level' is '9'; allowed: 1, 2."),
    ],
)
def test_wrong_options_are_refused_in_the_words_of_epctx(options, case, text, way):
    (kind, message), instances = options[f"{case} {way}"]

    assert kind == "InvalidArgument"
    assert text in message
    assert instances == []


@pytest.mark.parametrize("way", WAYS)
def test_a_right_option_reaches_the_ep(options, way):
    assert options[f"right {way}"] == [None, [2]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["strict", "strict entry"])
def test_a_strict_session_in_which_the_ep_takes_no_node_is_refused(options, case, way):
    kind, message = options[f"{case} {way}"][0]

    assert kind == "Fail"
    assert f"{FAULTY} takes no node of the model" in message
    assert "epctx_strict=1" in message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["not strict", "strict taken"])
def test_a_session_is_made_if_the_ep_takes_a_node_or_need_not(options, case, way):
    assert options[f"{case} {way}"][0] is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "key",
    [
        "ep.stop_share_ep_contexts",
        "ep.enable_weightless_ep_context_nodes",
    ],
)
def test_options_of_what_no_ep_can_do_in_onnxruntime_are_refused(options, key, way):
    kind, message = options[f"{key} {way}"][0]

    assert kind == "InvalidArgument"
    assert f"{key} has no meaning for {FAULTY} inside onnxruntime." in message


@pytest.mark.parametrize("way", WAYS)
def test_sharing_contexts_has_no_effect_as_genai_asks_for_it_always(options, way):
    assert options[f"ep.share_ep_contexts {way}"][0] is None


def test_weightless_mode_is_refused_by_onnxruntime_itself(options):
    # By the name of an EP, onnxruntime's Python API prints this and goes to the CPU.
    kind, message = options["ep.enable_weightless_mode open_session"][0]

    assert kind == "EPFail"
    assert "ep.enable_weightless_mode=1" in message
    assert FAULTY in message


# -- runs ----------------------------------------------------------------------------------

RUNS = """
import signal
from epctx_core.errors import EPFail

def interrupt(*_):
    signal.raise_signal(signal.SIGINT)

def leave(*_):
    sys.exit(3)

def fail(*_):
    raise ZeroDivisionError("no tiles")

def fail_as_ep(*_):
    raise EPFail("the chip is gone.")

def write_input(given, results, targets):
    given[0][...] = 0
    return results

# A shell has what it runs in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
faults = {
    "raises": fail,
    "raises EPFail": fail_as_ep,
    "leaves": leave,
    "is interrupted": interrupt,
    "writes": write_input,
    "nothing": lambda given, results, targets: None,
    "number": lambda given, results, targets: [1.0],
    "count": lambda given, results, targets: results * 2,
    "shape": lambda given, results, targets: [results[0][:1]],
    "rank": lambda given, results, targets: [results[0][0]],
    "dtype": lambda given, results, targets: [results[0].astype("f8")],
    "alias": lambda given, results, targets: [given[0]],
    "layout": lambda given, results, targets: [np.asfortranarray(results[0])],
}
dynamic = make_model(folder / "dynamic.onnx", shape=("n", 32))
for kind, model in {"static": path, "dynamic": dynamic}.items():
    for way in WAYS:
        session = way(model, FAULTY)
        for fault, function in faults.items():
            FAULTS["run"] = function
            raised = attempt(run_once, session)
            FAULTS.clear()
            last = repr(bridge.last_error())
            key = f"{fault} {kind} {way.__name__}"
            found[key] = [raised, last, is_right(session)]
"""


@pytest.fixture(scope="module")
def runs(folder):
    return find_failures(RUNS, folder)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize(
    ("fault", "text", "last"),
    [
        (
            "raises",
            f"{LABEL} failed in run: ZeroDivisionError: no tiles.",
            "RuntimeException(",
        ),
        ("raises EPFail", "the chip is gone.", "EPFail("),
        ("leaves", f"{LABEL} failed in run: SystemExit: 3.", "RuntimeException("),
        ("is interrupted", "KeyboardInterrupt", "KeyboardInterrupt("),
        ("writes", "ValueError: assignment destination is read-only", "RuntimeExc"),
        ("nothing", "it gave a NoneType instead of a list of arrays", "PluginError("),
        ("count", "it gave 2 results for 1 outputs", "PluginError("),
        ("dtype", f"{LABEL} broke the contract in the run", "PluginError("),
        ("alias", f"{LABEL} broke the contract in the run", "PluginError("),
        ("layout", f"{LABEL} broke the contract in the run", "PluginError("),
        ("number", f"{LABEL} broke the contract in the run", "PluginError("),
    ],
)
def test_a_fault_of_a_run_is_raised_and_the_session_works_afterwards(
    runs, fault, kind, way, text, last
):
    (raised, message), last_error, works = runs[f"{fault} {kind} {way}"]

    assert raised == "RuntimeException"
    assert text in message
    assert FAULTY in message
    assert last_error.startswith(last)
    assert works


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", ["shape", "rank"])
def test_a_result_that_does_not_fit_its_output_is_refused(runs, fault, way):
    (raised, message), _, works = runs[f"{fault} static {way}"]

    assert raised == "RuntimeException"
    assert f"{LABEL} broke the contract in the run" in message
    assert works


@pytest.mark.parametrize("way", WAYS)
def test_a_result_of_another_rank_than_inferred_is_refused(runs, way):
    (raised, message), _, works = runs[f"rank dynamic {way}"]

    assert raised == "InvalidGraph"
    assert f"{LABEL} gave float32[32]" in message
    assert works


# -- damaged context models ----------------------------------------------------------------

DAMAGE = """
def note(case, model):
    found[case] = [run_attempt(way, str(model), FAULTY) for way in WAYS]

def change(data):
    # Still what the EP reads: a digit of a weight.
    changed = data.replace(b"1.", b"7.", 1)
    assert changed != data
    return changed

context = folder / "external.onnx"
compile_model(path, context, embeds=False)
files = sorted(folder.glob("external*.bin"))
first, second = (file.read_bytes() for file in files)
damages = {
    "swapped": (second, first),
    "truncated": (first[:-8], second),
    "changed": (change(first), second),
    "second changed": (first, change(second)),
    "empty": (b"", second),
    "missing": (None, second),
    "none": (first, second),
}
for case, contents in damages.items():
    for file, data in zip(files, contents, strict=True):
        file.unlink(missing_ok=True)
        if data is not None:
            file.write_bytes(data)
    note(case, context)

embedded = compile_model(path, folder / "embedded.onnx", embeds=True)
for index, case in enumerate(("embedded", "second embedded")):
    model = onnx.load(embedded)
    nodes = [node for node in model.graph.node if node.op_type == "EPContext"]
    (payload,) = (a for a in nodes[index].attribute if a.name == "ep_cache_context")
    payload.s = change(payload.s)
    onnx.save(model, folder / "damaged.onnx")
    note(case, folder / "damaged.onnx")

note("fresh", embedded)
FAULTS["compatibility"] = "made by version 2"
note("stale", embedded)
"""


@pytest.fixture(scope="module")
def damage(folder):
    return find_failures(DAMAGE, folder)


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("swapped", "is not the one that the model was written with: it has"),
        ("truncated", "is not the one that the model was written with: it has"),
        ("empty", "which is empty"),
        ("changed", "have another digest"),
        ("second changed", "have another digest"),
        ("missing", "which is missing"),
        ("embedded", "have another digest"),
        ("second embedded", "have another digest"),
        ("stale", "the model was compiled for 'made by version 1'"),
    ],
)
def test_a_damaged_or_stale_context_model_is_refused(damage, case, text):
    for kind, message in damage[case]:
        assert kind == "InvalidGraph"
        assert text in message


def test_undamaged_context_models_run(damage):
    assert damage["none"] == damage["fresh"] == [None, None]


# -- registrations -------------------------------------------------------------------------

MADE = [f"Made{letter}ExecutionProvider" for letter in "ABCDEFGHI"]

REGISTRATIONS = """
onnxruntime.set_default_logger_severity(4)

def list_names():
    return [device.ep_name for device in onnxruntime.get_ep_devices()]

def register_library(name):
    library = bridge.get_library_path()
    return attempt(onnxruntime.register_execution_provider_library, name, library)

found["names"] = bridge.register()
found["last"] = str(bridge.last_error())
found["devices"] = list_names()
found["sessions"] = [
    run_attempt(open_session, path, name) for name in found["names"] if "Made" in name
]
found["again"] = [bridge.register() == found["names"], list_names() == found["devices"]]
found["broken"] = [attempt(bridge.register, ["Broken"])]
found["broken"].append(register_library("BrokenExecutionProvider"))
found["broken"].append(str(bridge.last_error()))
found["nobody"] = attempt(bridge.register, ["Nobody"])
found["unchanged"] = list_names() == found["devices"]
found["unknown"] = register_library("anything")
found["unknown devices"] = list_names()[len(found["devices"]) :]
"""


@pytest.fixture(scope="module")
def registrations(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    group = "epctx.execution_providers"
    made = {name: f"made_eps:{name}" for name in MADE}
    install_distribution(folder, "made-eps", {group: made})
    for word, fault in {"Broken": "raise ImportError('no libacme')", "Odd": ""}.items():
        module = f"{word.lower()}_ep"
        entries = {f"{word}ExecutionProvider": f"{module}:Provider"}
        install_distribution(folder, f"{word.lower()}-ep", {group: entries})
        (folder / f"{module}.py").write_text(
            f"""{fault}
from hosting import FaultyProvider
class Provider(FaultyProvider):
    name = "{word}ExecutionProvider"
    @classmethod
    def devices(cls):
        raise OSError("no driver")
"""
        )
    (folder / "made_eps.py").write_text(
        "from hosting import FaultyProvider\n"
        + "".join(f"class {n}(FaultyProvider):\n    name = '{n}'\n" for n in MADE)
    )
    begin = BEGIN.replace("offer()\n", "")
    env = {"EPCTX_DISABLE_PLUGINS": "epctx-sim-openvino", "PYTHONPATH": str(folder)}
    output = run_program(begin + REGISTRATIONS + END, folder, env=env)
    return json.loads(output.splitlines()[-1])


def test_more_eps_than_a_registration_takes_are_all_reachable(registrations):
    assert set(MADE) <= set(registrations["names"])
    assert set(registrations["names"]) <= set(registrations["devices"])
    assert registrations["sessions"] == [None] * len(MADE)


def test_eps_that_are_registered_already_stay_as_they_are(registrations):
    assert registrations["again"] == [True, True]


def test_an_ep_that_cannot_be_registered_is_left_out_and_said(registrations):
    left_out = {"BrokenExecutionProvider", "OddExecutionProvider"}

    assert not left_out & {*registrations["names"], *registrations["devices"]}
    assert (
        "OddExecutionProvider (odd-ep 1.0) failed in devices: OSError: no driver"
        in (registrations["last"])
    )


def test_a_broken_ep_that_is_asked_for_is_named(registrations):
    (kind, message), (status, text), last = registrations["broken"]

    assert (kind, status) == ("PluginError", "EPFail")
    for each in (message, text, last):
        assert "BrokenExecutionProvider (broken-ep 1.0)" in each
        assert "broken_ep:Provider failed to import: ImportError: no libacme" in each
    assert registrations["unchanged"]


def test_an_ep_that_is_not_installed_is_refused(registrations):
    kind, message = registrations["nobody"]

    assert kind == "InvalidArgument"
    assert "'Nobody'" in message


def test_a_registration_of_another_name_offers_the_first_eps(registrations):
    assert registrations["unknown"] is None
    assert set(registrations["unknown devices"]) <= set(registrations["names"])
    assert registrations["unknown devices"]


def test_attributes_are_released_if_a_later_one_of_their_node_is_refused():
    class Counting:
        def __init__(self):
            self.made = 0
            self.released = []

        def get(self, function, *_):
            assert function == "CreateOpAttr"
            self.made += 1
            if self.made == 3:
                raise StatusError(1, "refused")
            return self.made

        def call(self, function, address):
            assert function == "ReleaseOpAttr"
            self.released.append(address)

    node = helper.make_node("EPContext", [], ["y"], a=1, b=2, c=3, d=4)
    ort = Counting()

    with pytest.raises(StatusError, match="refused"):
        library._make_node(ort, node)

    assert ort.made == 3
    assert ort.released == [1, 2]
