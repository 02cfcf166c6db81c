"""How a log record becomes text for a person, or one JSON object on one line for a program."""

import json
import logging
from datetime import UTC, datetime

from headrace.server.seen.request_trace import current


class TextFormatter(logging.Formatter):
    """`[time] LEVEL message`, with the request's id after the level while one is answered."""

    def __init__(self) -> None:
        super().__init__(
            "[%(asctime)s] %(levelname)s %(request)s%(message)s",
            datefmt="%Y-%m-%d %H:%M:%S",
            defaults={"request": ""},
        )

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter. Called where the record is made: the id is that of the running task."""
        if trace := current():
            record.request = f"[{trace.request_id}] "
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """The keys time (UTC, RFC 3339), level, logger, message; request_id and traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging.Formatter."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := current():
            entry["request_id"] = trace.request_id
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            entry["stack"] = self.formatStack(record.stack_info)
        # Names from stores may hold lone surrogates, which no reader of JSON takes.
        entry = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in entry.items()}
        return json.dumps(entry, ensure_ascii=False)
