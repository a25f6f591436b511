"""Nothing that is shipped makes code or objects out of data: no pickle, no eval, no
shell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support.folders import ROOT

SHIPPED = [*(ROOT / "epctx_core").rglob("*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
MODULES = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "code",
    "codeop",
    "yaml",
}
FUNCTIONS = {"eval", "exec", "compile", "__import__"}
SWITCHES = {"allow_pickle", "shell"}
HARMLESS = {
    # Does what import statements within onnxruntime say, after `install()`: the code of
    # a program, which is no data.
    "plugins/epctx-onnxruntime/src/epctx_onnxruntime/drop_in/substitution.py": [
        "__import__"
    ],
    # Read by a child, from the host that started it; a host reads no pickle.
    "plugins/epctx-isolation/src/epctx_isolation/orders.py": ["pickle"],
    # Says in its JSON for which shell the script is.
    "plugins/epctx-cli/src/epctx_cli/commands/completion.py": ["shell"],
}
"""What is found in modules that run no data, and why it is there."""


def code_runners(tree: ast.Module) -> Iterator[str]:
    """Yield what in a module could run what data says: modules imported, functions
    called, switches set.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                alias.name
                for alias in node.names
                if alias.name.split(".")[0] in MODULES
            )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (
                {str(node.module)} if str(node.module).split(".")[0] in MODULES else ()
            )
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
                yield node.func.id
            yield from (
                k.arg
                for k in node.keywords
                if k.arg in SWITCHES and ast.unparse(k.value) != "False"
            )


def test_no_shipped_module_runs_what_data_says():
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in SHIPPED
        if (names := sorted(code_runners(ast.parse(path.read_bytes()))))
    }

    assert len(SHIPPED) > 100
    assert found == HARMLESS


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
        "run('x', shell=True)",
    ],
)
def test_what_would_is_seen(source):
    assert list(code_runners(ast.parse(source)))
