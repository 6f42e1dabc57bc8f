"""What importing loads, which way imports run, and what every module owes its reader."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import commsched

FRONT = Path(commsched.__file__).resolve().parent
LAYERS = ("models", "problems", "optimizer", "commsched")
MAX_LINES = 400
HEAVY = ("ortools", "matplotlib", "torch", "pandas")
FOREIGN = {
    "models": {"ortools", "msgspec", "typer", "rich", "matplotlib", "torch", "json"},
    "problems": {"ortools", "typer", "rich", "matplotlib"},
    "optimizer": {"msgspec", "typer", "rich", "matplotlib", "torch"},
    "commsched": {"ortools"},
}


def found_modules() -> dict[str, Path]:
    """Return the files of all modules by import name; each layer is reached in one way only."""
    modules = {}
    for path in sorted(FRONT.glob("*.py")) + [
        path
        for folder in sorted(FRONT.iterdir())
        if folder.is_dir()
        for path in sorted(folder.rglob("*.py"))
    ]:
        parts = path.relative_to(FRONT).with_suffix("").parts
        modules[".".join(("commsched", *(part for part in parts if part != "__init__")))] = path
    return modules


MODULES = found_modules()


def layer(module: str) -> str:
    """Return the layer of a module; what is in none of the three lower ones is the front door."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS[:3] else "commsched"


def imported(module: str, path: Path) -> set[str]:
    """Return what a module imports anywhere in it, in functions and for type checkers too."""
    names = set()
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            submodules = {f"{base}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= submodules
            if len(submodules) < len(node.names):
                names.add(base)
    return names


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_importing_loads_no_solver_and_no_plotting_library():
    """``import commsched`` stays light: heavy libraries are loaded when they are needed."""
    loaded = loaded_by("import commsched")
    assert "commsched" in loaded
    assert not loaded & set(HEAVY)


def test_a_plan_by_recurrence_loads_no_solver(tmp_path):
    """The common case needs neither OR-Tools nor matplotlib, from the library or the command."""
    path = tmp_path / "problem.json"
    problem = commsched.gradient_problem(
        [commsched.Gradient("a", 4096, 1000)], commsched.AlphaBeta(1, 1)
    )
    commsched.write_problem(problem, path)
    for statement in (
        f"import commsched; commsched.compare(commsched.read({str(path)!r}))",
        "import commsched.cli, contextlib\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    commsched.cli.main(['plan', {str(path)!r}, '--json'])",
    ):
        assert not loaded_by(statement) & set(HEAVY)


def test_all_the_layers_are_looked_at():
    """The modules of every layer are found."""
    assert {layer(module) for module in MODULES} == set(LAYERS)
    for module in ("commsched", "commsched.cli", "commsched.models.timeline"):
        assert module in MODULES


def test_imports_are_found_wherever_they_stand(tmp_path):
    """At the top, in a function, for type checkers only, relative, and of a module by name."""
    path = tmp_path / "module.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import os.path, json\n"
        "from typing import TYPE_CHECKING\n"
        "from commsched import cli\n"
        "from . import errors\n"
        "from ..optimizer import optimize\n"
        "if TYPE_CHECKING:\n    import numpy as np\n"
        "def f():\n    from commsched.problems.files import decode\n"
    )
    assert imported("commsched.models.new", path) == {
        "__future__",
        "os.path",
        "json",
        "typing",
        "commsched.cli",
        "commsched.models.errors",
        "commsched.optimizer",
        "numpy",
        "commsched.problems.files",
    }


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module):
    """models <- problems <- optimizer <- commsched, in functions and for type checkers too."""
    allowed = LAYERS[: LAYERS.index(layer(module)) + 1]
    for name in imported(module, MODULES[module]):
        top = name.partition(".")[0]
        assert top not in LAYERS[:3], f"{module} imports {name} by a bare name"
        assert top not in FOREIGN[layer(module)], f"{module} imports {name}"
        if top == "commsched":
            assert layer(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is_for(module):
    """A docstring at the top."""
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_too_long_to_read(module):
    """About 400 lines at most."""
    lines = len(MODULES[module].read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{module} has {lines} lines"


def test_every_public_name_is_there_and_documented():
    """``commsched.__all__`` lists what people use, sorted, each with a docstring of its own."""
    assert commsched.__doc__
    assert len(set(commsched.__all__)) == len(commsched.__all__)
    for name in commsched.__all__:
        thing = getattr(commsched, name)
        assert inspect.isclass(thing) or inspect.isfunction(thing), name
        doc = thing.__doc__
        assert doc, name
        assert doc.strip(), name
        # A dataclass without a docstring gets its signature as one.
        assert not doc.startswith(f"{name}("), name
        if inspect.isclass(thing):
            bases = [base.__doc__ for base in thing.__mro__[1:]]
            assert doc not in bases, name


def test_the_fixed_names_are_public():
    """The names that others script against."""
    fixed = {
        "read",
        "optimize",
        "evaluate",
        "compare",
        "gradient_problem",
        "Gradient",
        "AlphaBeta",
        "Problem",
        "Plan",
        "Result",
        "Timeline",
        "Comparison",
    }
    assert fixed <= set(commsched.__all__)
    parameters = inspect.signature(commsched.optimize).parameters
    assert parameters["scope"].default == "in-order"
    assert parameters["method"].default == "auto"
    for name in ("scope", "method", "time_limit_s", "workers", "seed"):
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize("module", ["models", "problems", "optimizer"])
def test_every_name_that_a_layer_offers_exists(module):
    """``__all__`` of each layer holds names that are there, each once."""
    names = __import__(f"commsched.{module}", fromlist=["__all__"])
    assert len(set(names.__all__)) == len(names.__all__)
    for name in names.__all__:
        assert hasattr(names, name), name


def test_the_package_is_typed():
    """Type checkers find ``py.typed``."""
    assert (FRONT / "py.typed").is_file()


def test_planning_gradients_builds_no_graph():
    """A planner calls this thousands of times: tasks and graph are only built if somebody looks."""
    gradients = [commsched.Gradient(f"g{k}", 1000, k) for k in range(100)]
    for cost in (commsched.AlphaBeta(1, 1), commsched.PiecewiseLinear([(1, 1), (10**6, 20)])):
        problem = commsched.gradient_problem(gradients, cost)
        result = commsched.optimize(problem)
        assert result.timeline.exposed_ns > 0
        assert not {"tasks", "graph", "nominal", "collectives"} & vars(problem).keys()


def test_the_source_archive_has_every_folder_that_the_makefile_names():
    """Hatch visits a folder once, by the link to it; without a word it has no top-level folders."""
    root = Path(__file__).resolve().parents[1]
    with (root / "pyproject.toml").open("rb") as file:
        build = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]
    forced = build["sdist"]["force-include"]
    layers = ("models", "problems", "optimizer")
    assert forced == {name: name for name in layers}
    for name in layers:
        assert (root / name / "__init__.py").is_file()
        assert (root / "commsched" / name / "__init__.py").is_file()
    assert build["wheel"]["packages"] == ["commsched"]
