"""What needs PyTorch at run time: capturing, measuring, tuning, running (the extra ``torch``).

``import commsched`` does not load this package; ``import commsched.torch`` does, and says how to
get PyTorch where it is missing.
"""

from commsched.models.errors import MissingExtraError


class TorchMissingError(MissingExtraError, ImportError):
    """PyTorch is not installed; the message says how to get it."""


try:
    import torch as _torch  # noqa: F401  (only whether it is there)
except ModuleNotFoundError as error:
    if error.name != "torch":  # an installation that is broken says so itself
        raise
    raise TorchMissingError(
        "commsched.torch needs PyTorch: pip install 'commsched[torch]'"
    ) from None

from commsched.torch.capturing import capture  # noqa: E402
from commsched.torch.hooks import trainable_parameters  # noqa: E402
from commsched.torch.link import EmulatedLink, LinkLaunch  # noqa: E402
from commsched.torch.measure import MeasuredCosts, measure_costs  # noqa: E402
from commsched.torch.overheads import MeasuredOverheads, measure_overheads  # noqa: E402
from commsched.torch.running import FormedBuckets, check, ddp_kwargs  # noqa: E402
from commsched.torch.sharding import ShardedGroups, fully_shard_plan  # noqa: E402
from commsched.torch.tuning import Tuned, tune  # noqa: E402

__all__ = [
    "EmulatedLink",
    "FormedBuckets",
    "LinkLaunch",
    "MeasuredCosts",
    "MeasuredOverheads",
    "ShardedGroups",
    "TorchMissingError",
    "Tuned",
    "capture",
    "check",
    "ddp_kwargs",
    "fully_shard_plan",
    "measure_costs",
    "measure_overheads",
    "trainable_parameters",
    "tune",
]
