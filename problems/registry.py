"""The list of readers: a new kind of recording is one module and one line here."""

from __future__ import annotations

from commsched.problems import (
    astra_workload,
    chakra_trace,
    ddp_logging,
    execution_steps,
    model_config,
    nsight_graph,
    pipedream_profile,
    profiler_reader,
    straggler_timeline,
)
from commsched.problems.readers import Reader

READERS: tuple[Reader, ...] = (
    straggler_timeline.READER,  # before the profiler's, for it is a Chrome trace too
    chakra_trace.READER,
    execution_steps.READER,
    nsight_graph.READER,
    profiler_reader.READER,
    pipedream_profile.READER,
    astra_workload.READER,
    ddp_logging.READER,
    model_config.READER,
)
"""In the order in which they are asked whether a file is theirs; the first that says yes reads it."""
