"""Limits on memory in CP-SAT: they must not end the process.

OR-Tools 9.15 can fail a check of its own in cuts from cumulative constraints, and abort. So each case
runs in a process of its own; without the precaution most of them aborted.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from dataclasses import replace
from commsched import AlphaBeta, Layer, fsdp_step, optimize
from commsched.problems.steps.layer_models import estimated_profile

units, repeatable = int(sys.argv[1]), sys.argv[2] == "True"
model = estimated_profile("gpt2", samples=2048, tflops=50, dtype="float32", by="block")
layers = [
    Layer(y.name, y.forward_ns, y.backward_ns, y.parameter_bytes, y.dtype) for y in model.layers
]
model = replace(model, layers=tuple(layers)).merged(-(-len(layers) // units))
cost = AlphaBeta(20, 25)
most = 2 * max(layer.parameter_bytes for layer in model.layers)
step = fsdp_step(
    model, {"all_gather": cost, "reduce_scatter": cost}, gathered_limit_bytes=most)
result = optimize(step, scope="any", time_limit_s=2, workers=8, repeatable=repeatable)
assert result.plan is not None and not result.timeline.broken
print(result.status)
"""


@pytest.mark.parametrize("units", [5, 6])
@pytest.mark.parametrize("repeatable", [True, False])
def test_a_pool_in_the_model_never_ends_the_process(units, repeatable):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(units), str(repeatable)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.strip() in ("optimal", "feasible")
