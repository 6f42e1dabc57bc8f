"""The frameworks' and papers' rules, one a file; :mod:`commsched.optimizer.registry` lists them.

Every rule is a function ``(problem) -> Plan`` that raises
:class:`~commsched.models.errors.NotApplicableError` where it has nothing to say. A scalar knob is its
second parameter; it may be a number, or a :class:`~commsched.models.knob.Knob` that records.
"""

from commsched.optimizer.rules.ddp import ddp
from commsched.optimizer.rules.each import one_each
from commsched.optimizer.rules.no_overlap import no_overlap
from commsched.optimizer.rules.one import one_bucket

__all__ = ["ddp", "no_overlap", "one_bucket", "one_each"]
