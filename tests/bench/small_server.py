"""A server that a benchmark can start in a moment: `python small_server.py PORT BEHAVIOUR`, standard library only.

`plain` answers at once; `busy` answers 503 three times before; `tells` has a /server_info and a /ready that is 200 from
its second question on; `restarted` tells of a failed engine; `dies` ends with status 7; `hangs` never answers; `refuses`
answers 404; `breaks` ends its stream without its end; `changes` answers otherwise the second time; `child` leaves a child
process behind, whose pid it writes to the file that is named third. `/health` is 404 except for `tells` and `busy`.
"""

import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BEHAVIOUR = sys.argv[2]
INFO = {
    "ready_s": 0.75,
    "phases": [
        {"name": "transfer", "start_s": 0.0, "end_s": 0.002, "seconds": 0.002, "hidden_share": None},
        {"name": "import torch", "start_s": 0.0, "end_s": 0.004, "seconds": 0.004, "hidden_share": 0.5},
    ],
}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    seen: dict[str, int] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        """Health, readiness, information."""
        count = self._count()
        if self.path == "/health" and BEHAVIOUR in ("tells", "busy"):
            self._answer(200, {})
        elif self.path == "/ready" and BEHAVIOUR == "tells":
            self._answer(200 if count > 1 else 503, {})
        elif self.path == "/server_info" and BEHAVIOUR in ("tells", "restarted"):
            self._answer(200, INFO | {"engine_restarts": int(BEHAVIOUR == "restarted")})
        elif self.path == "/flush_cache":
            self._answer(200, {})
        else:
            self._answer(404, {"error": "no such route"})

    def do_POST(self) -> None:
        """A completion."""
        self.rfile.read(int(self.headers["Content-Length"]))
        count = self._count()
        if BEHAVIOUR == "busy" and count <= 3:
            self._answer(503, {"error": "loading"})
        elif BEHAVIOUR == "refuses":
            self._answer(404, {"error": "the model m is not served here"})
        else:
            self._stream(["", " Paris", "." if BEHAVIOUR != "changes" else str(count)])

    def _count(self) -> int:
        self.seen[self.path] = self.seen.get(self.path, 0) + 1
        return self.seen[self.path]

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, pieces: list[str]) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"data: " + json.dumps({"choices": [{"text": piece}]}).encode() + b"\n\n")
        if BEHAVIOUR != "breaks":
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if BEHAVIOUR == "dies":
    print("cannot find\nthe model", flush=True)
    sys.exit(7)
if BEHAVIOUR == "hangs":
    time.sleep(1000)
if BEHAVIOUR == "child":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open(sys.argv[3], "w") as file:
        file.write(str(child.pid))
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
