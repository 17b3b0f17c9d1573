"""The page for people with a browser: reads what the controller shows, and changes nothing."""

from eplb_service.web.app import PageApp
from eplb_service.web.feed import Feed

__all__ = ["Feed", "PageApp"]
