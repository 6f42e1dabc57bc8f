"""The front door: ``import commsched`` loads nothing, and Ctrl-C is heard while the rest is loaded."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import commsched
from commsched import models, optimizer, problems

ROOT = Path(__file__).resolve().parents[1]
FOUR = str(ROOT / "examples" / "four_layers.json")
LAYERS = (models, problems, optimizer)

# Runs the command line and presses Ctrl-C when a module is looked for; like some modules do, the
# finder lets no exception pass.
PRESSED = """
import importlib.abc, os, signal, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except BaseException:
                {caught}
sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, {handler})
from commsched.cli import main
main()
"""


def run_python(code, *arguments):
    """Run a program in a fresh interpreter; return exit code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
    )
    return done.returncode, done.stdout, done.stderr


def pressed(module, *arguments, caught="raise", handler="signal.default_int_handler"):
    """Run the command line with Ctrl-C at the import of a module."""
    return run_python(PRESSED.format(module=module, caught=caught, handler=handler), *arguments)


@pytest.mark.parametrize("caught", ["raise", "pass", "raise ImportError"])
@pytest.mark.parametrize(
    "module", ["commsched.app", "typer", "commsched.models", "numpy", "commsched.optimizer"]
)
def test_ctrl_c_while_modules_load(module, caught):
    """One line and exit code 130, also where a module would swallow or change the exception."""
    assert pressed(module, "plan", FOUR, caught=caught) == (130, "", "commsched: interrupted\n")


def test_ctrl_c_while_modules_load_that_a_command_needs(tmp_path):
    """The page's modules and matplotlib are loaded when they are needed; nothing is half-written."""
    page, picture = tmp_path / "page.html", tmp_path / "new.svg"
    for module, arguments in (
        ("commsched.report", ("report", FOUR, "-o", page)),
        ("matplotlib", ("plan", FOUR, "--picture", picture)),
    ):
        code, _, err = pressed(module, *map(str, arguments))
        assert (code, err) == (130, "commsched: interrupted\n")
    assert os.listdir(tmp_path) == []


def test_ctrl_c_that_is_ignored_stays_so():
    """As with nohup, or behind ``&`` in a script."""
    code, out, err = pressed("numpy", "plan", FOUR, "--json", handler="signal.SIG_IGN")
    assert (code, err) == (0, "")
    assert json.loads(out)["status"] == "optimal"


def test_ctrl_c_at_the_very_end_prints_no_traceback():
    """All is printed; what is left is Python's own end."""
    code = (
        "import atexit, os, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from commsched.cli import main\nmain()"
    )
    code, out, err = run_python(code, "--version")
    assert code in (0, -signal.SIGINT)
    assert (out, err) == (f"commsched {commsched.__version__}\n", "")


def test_a_program_keeps_its_own_handling_of_signals():
    """Arguments come from a program that calls: its handler is there before, during and after."""
    code = (
        "import signal, sys\n"
        "from commsched.cli import main\n"
        "own = lambda *_: None\n"
        "signal.signal(signal.SIGINT, own)\n"
        "try:\n    main(['--version'])\n"
        "except SystemExit:\n    pass\n"
        "assert signal.getsignal(signal.SIGINT) is own\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    main(['--version'])\n"
        "except SystemExit:\n    pass\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    assert run_python(code)[::2] == (0, "")


def test_importing_the_package_or_its_entry_point_loads_nothing_else():
    """So ``import commsched`` is fast, and Ctrl-C finds the entry point in time."""
    code = (
        "import sys\nbefore = set(sys.modules)\nimport commsched.cli\n"
        "print(*sorted(set(sys.modules) - before - {'__future__'}))"
    )
    assert run_python(code) == (0, "commsched commsched.cli\n", "")


def test_running_as_a_module_is_the_command_line():
    """And importing that module runs nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "commsched", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"commsched {commsched.__version__}\n"
    assert run_python("import commsched.__main__") == (0, "", "")


def test_the_lazy_names_are_those_of_the_layers():
    """Each public name is its layer's own, however it is asked for."""
    for name in commsched.__all__:
        owners = [layer for layer in LAYERS if name in layer.__all__]
        assert owners, name
        assert getattr(commsched, name) is getattr(owners[0], name)
    code = "from commsched import *; print(Gradient('a', 1, 2).name, optimize.__name__)"
    assert run_python(code) == (0, "a optimize\n", "")


def test_type_checkers_see_the_names_that_there_are():
    """What is imported for them is ``__all__``, each name from a layer that offers it."""
    tree = ast.parse(Path(commsched.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("commsched.")
        for alias in node.names
    }
    assert sorted(seen) == commsched.__all__
    for name, module in seen.items():
        first = next(layer for layer in LAYERS if name in layer.__all__)
        assert first.__name__ == module, name


def test_the_layers_are_there_without_importing_them():
    """``commsched.problems`` and the others, as before they were loaded lazily."""
    for layer in ("models", "problems", "optimizer"):
        code = f"import commsched; print(commsched.{layer}.__name__)"
        assert run_python(code) == (0, f"commsched.{layer}\n", "")
    code = "import commsched; print(commsched.__version__, commsched.models.units.MIB)"
    assert run_python(code) == (0, f"{commsched.__version__} 1048576\n", "")


def test_dir_has_all_names_and_others_are_refused():
    """Completion knows them before they are loaded; a typing error is an AttributeError."""
    code = "import commsched, json; print(json.dumps(dir(commsched)))"
    listed = json.loads(run_python(code)[1])
    assert {*commsched.__all__, "__version__", "models", "problems", "optimizer"} <= {*listed}
    with pytest.raises(AttributeError, match="module 'commsched' has no attribute 'optimise'"):
        commsched.optimise  # noqa: B018
    with pytest.raises(ImportError, match="optimise"):
        from commsched import optimise  # noqa: F401
