"""Plans as settings of the frameworks that run them, one framework a file."""

from commsched.export.ddp import DdpSettings, ddp_settings
from commsched.export.registry import EXPORTERS, export, export_file
from commsched.export.result import Export
from commsched.export.source import ExportOptions

__all__ = [
    "EXPORTERS",
    "DdpSettings",
    "Export",
    "ExportOptions",
    "ddp_settings",
    "export",
    "export_file",
]
