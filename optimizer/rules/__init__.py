"""The frameworks' and papers' rules, one a file; :mod:`commsched.optimizer.registry` lists them.

Every rule is a function ``(problem) -> Plan`` that raises
:class:`~commsched.models.errors.NotApplicableError` where it has nothing to say. A scalar knob is its
second parameter; it may be a number, or a :class:`~commsched.models.knob.Knob` that records.
"""
