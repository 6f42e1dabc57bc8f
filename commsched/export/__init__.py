"""Plans as settings of the frameworks that run them, one framework a file."""

from commsched.export.ddp import DdpSettings, ddp_settings

__all__ = ["DdpSettings", "ddp_settings"]
