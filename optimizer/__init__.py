"""How the best plan is found and proved, and what simple rules make of the same step."""

from commsched.optimizer.bounds import closed_form_bound
from commsched.optimizer.comparison import Comparison, Row, compare, verdict
from commsched.optimizer.limit_prices import LimitPrice, conflict, limit_prices
from commsched.optimizer.registry import RULES, BestSetting, Rule, rule
from commsched.optimizer.result import SCOPES, Bound, Result, Scope, Status
from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.no_overlap import no_overlap
from commsched.optimizer.rules.one import one_bucket
from commsched.optimizer.solve import METHODS, TIME_LIMIT_S, WORKERS, optimize
from commsched.optimizer.tuning import KnobRange, Tuning, tune
from commsched.optimizer.variants import Variants, optimize_variants

__all__ = [
    "METHODS",
    "RULES",
    "SCOPES",
    "TIME_LIMIT_S",
    "WORKERS",
    "BestSetting",
    "Bound",
    "Comparison",
    "KnobRange",
    "LimitPrice",
    "Result",
    "Row",
    "Rule",
    "Scope",
    "Status",
    "Tuning",
    "Variants",
    "closed_form_bound",
    "compare",
    "conflict",
    "ddp",
    "limit_prices",
    "no_overlap",
    "one_bucket",
    "one_each",
    "optimize",
    "optimize_variants",
    "rule",
    "tune",
    "verdict",
]
