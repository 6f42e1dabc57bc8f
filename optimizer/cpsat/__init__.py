"""The solver for what is hard: CP-SAT models of the whole step. Importing it loads OR-Tools."""

from commsched.optimizer.cpsat.any_order import AnyOrderModel
from commsched.optimizer.cpsat.in_order import InOrderModel
from commsched.optimizer.cpsat.run import Budget
from commsched.optimizer.cpsat.search import Outcome, solve

__all__ = ["AnyOrderModel", "Budget", "InOrderModel", "Outcome", "solve"]
