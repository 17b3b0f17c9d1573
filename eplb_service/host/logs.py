"""Log lines as events: one JSON object a line, on stderr."""

import json
import logging
import sys

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class EventFormatter(logging.Formatter):
    """Writes time, level, event and every field that was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        fields = {k: v for k, v in record.__dict__.items() if k not in _PLAIN}
        event = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **fields,
        }
        if record.exc_info:
            event["error"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def log_events(level: int = logging.INFO) -> None:
    """Send our own events to stderr; idempotent."""
    root = logging.getLogger("eplb_service")
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(EventFormatter())
        root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
