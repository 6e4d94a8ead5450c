"""The executor process's log lines on stderr: text, or an object a line if the server's log is such."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from executors.process.output import JSON_VARIABLE


def configure() -> None:
    """Set up logging for this process, Python's warnings included."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("executor: %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if JSON_VARIABLE in os.environ else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)


class JsonFormatter(logging.Formatter):
    """An object a line, with the fields of the server's own lines."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON; all but ASCII is escaped."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": f"{seconds}.{int(record.created % 1 * 1e6):06d}Z",
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
