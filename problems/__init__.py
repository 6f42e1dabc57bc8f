"""Where steps come from: problem files, builders, and readers of other programs' files."""

from commsched.problems.builders import gradient_problem
from commsched.problems.cost_rows import read_costs, write_costs
from commsched.problems.digest import problem_digest
from commsched.problems.plan_file import plan_of, read_plan
from commsched.problems.problem_file import problem_to_bytes, read_problem, write_problem
from commsched.problems.reading import Loaded, load, read
from commsched.problems.recorded import Check, ImportReport, RecordedLaunch, RecordedStep

__all__ = [
    "Check",
    "ImportReport",
    "Loaded",
    "RecordedLaunch",
    "RecordedStep",
    "gradient_problem",
    "load",
    "plan_of",
    "problem_digest",
    "problem_to_bytes",
    "read",
    "read_costs",
    "read_plan",
    "read_problem",
    "write_costs",
    "write_problem",
]
