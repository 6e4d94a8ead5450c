"""Tools as people offer them: names, descriptions, parameters and requests, each in several wordings."""

from executors.tiny.data.tool_catalogue_daily import DAILY
from executors.tiny.data.tool_catalogue_home import HOME
from executors.tiny.data.tool_catalogue_office import OFFICE
from executors.tiny.data.tool_catalogue_travel import TRAVEL
from executors.tiny.data.tool_catalogue_work import WORK
from executors.tiny.data.tool_kind import ToolKind

__all__ = ["CATALOGUE", "ToolKind"]

CATALOGUE: tuple[ToolKind, ...] = (*DAILY, *HOME, *TRAVEL, *WORK, *OFFICE)
