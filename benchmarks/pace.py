"""How the number of connections adapts: the share of what a store would give that a load gets, in two cases.

capped: a store that sends at most 20 MB/s on each connection. All of it: 20 MB/s times the connections allowed.
refusing: the same store answers 503 on every connection above 8. All of it: 20 MB/s times 8.

    python benchmarks/pace.py                    # 10 s of transfer each
    python benchmarks/pace.py --seconds 20 --cap-mb-s 20 --limit 32 --bears 8 --json

The store is a process of its own; it sends zeros and counts. Chunks are shorter than usual where the cap is low, so
that a load of seconds has enough of them.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from headrace.source.objects import ObjectInfo
from headrace.source.uri import parse_source
from headrace.store.s3.settings import resolve_s3_settings
from headrace.store.s3.store import S3Store
from headrace.stream.plan import Placement, plan_reads
from headrace.stream.transfer.transfer import Transfer

OBJECT_BYTES = 64 << 20
PIECE_BYTES = 128 << 10
ZEROS = bytes(PIECE_BYTES)


@dataclass(frozen=True)
class Result:
    """One load.

    Attributes:
        share: of what the store would give, over the whole load; `settled` over its second half.
        connections: median in the second half; `most`: in all of it.
        refused: answers of 503.
    """

    case: str
    seconds: float
    mb_per_s: float
    share: float
    settled: float
    connections: float
    most: int
    requests: int
    refused: int


class PacedStore:
    """Answers ranged GETs of any key with zeros: so many MB/s a connection, 503 on connections above `bears`."""

    def __init__(self, cap_bytes_per_s: float, bears: int | None) -> None:
        self._cap, self._bears = cap_bytes_per_s, bears
        self._lock = threading.Lock()
        self._open: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]

    def run(self) -> None:
        """Until the process ends."""
        for number in range(1 << 30):
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection, number), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with self._lock:
            self._open.append(number)
        try:
            for first, last in _ranges(connection):
                with self._lock:
                    refused = self._bears is not None and self._open.index(number) >= self._bears
                if refused:
                    connection.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
                else:
                    self._send(connection, first, last)
        except ConnectionError:
            pass  # the client has gone
        finally:
            with self._lock:
                self._open.remove(number)
            connection.close()

    def _send(self, connection: socket.socket, first: int, last: int) -> None:
        size = last + 1 - first
        connection.sendall(
            f'HTTP/1.1 206 Partial\r\nContent-Length: {size}\r\nETag: "zeros"\r\n'
            f"Content-Range: bytes {first}-{last}/{OBJECT_BYTES}\r\n\r\n".encode()
        )
        start = time.monotonic()
        for at in range(0, size, PIECE_BYTES):
            connection.sendall(memoryview(ZEROS)[: size - at])
            ahead_s = min(at + PIECE_BYTES, size) / self._cap - (time.monotonic() - start)
            if ahead_s > 0:
                time.sleep(ahead_s)


def _ranges(connection: socket.socket) -> Iterator[tuple[int, int]]:
    """What is asked for, one after another."""
    buffer = b""
    while True:
        while b"\r\n\r\n" not in buffer:
            data = connection.recv(1 << 14)
            if not data:
                return
            buffer += data
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        line = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"range: "))
        first, _, last = line.partition(b"=")[2].partition(b"-")
        yield int(first), int(last)


def serve(port: multiprocessing.connection.Connection, cap_bytes_per_s: float, bears: int | None) -> None:
    """The store's process."""
    store = PacedStore(cap_bytes_per_s, bears)
    port.send(store.port)
    store.run()


def load(case: str, cap_bytes_per_s: float, limit: int, bears: int | None, seconds: float) -> Result:
    """One load of about so many seconds, sampled while it runs."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve, args=(theirs, cap_bytes_per_s, bears), daemon=True)
    process.start()
    try:
        return _load(case, ours.recv(), cap_bytes_per_s, limit, bears, seconds)
    finally:
        process.kill()
        process.join()


def _load(
    case: str, port: int, cap_bytes_per_s: float, limit: int, bears: int | None, seconds: float
) -> Result:
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "A" * 20,
        "AWS_SECRET_ACCESS_KEY": "s" * 40,
        "AWS_REGION": "us-east-1",
    }
    store = S3Store(parse_source("s3://bucket"), resolve_s3_settings(environment))
    wire = cap_bytes_per_s * min(limit, bears or limit)
    times = max(1, round(wire * seconds / OBJECT_BYTES))
    item = ObjectInfo("zeros", "zeros", OBJECT_BYTES, "zeros")
    # Every shard is the same object and goes to the same place.
    placements = [Placement(shard, 0, OBJECT_BYTES, 0, shard, "U8", "U8") for shard in range(times)]
    chunk_bytes = min(8 << 20, max(1 << 20, int(cap_bytes_per_s / 10)))
    transfer = Transfer(
        plan_reads(placements, chunk_bytes),
        [item] * times,
        store,
        memoryview(bytearray(OBJECT_BYTES)),
        concurrency=limit,
    )
    samples = []
    while (now := transfer.progress()).bytes_done < now.bytes_total:
        samples.append(now)
        time.sleep(0.05)
    transfer.wait()
    end = transfer.progress()
    late = [sample for sample in samples if sample.bytes_done > 0.5 * end.bytes_total]
    settled = (end.bytes_done - late[0].bytes_done) / (end.seconds - late[0].seconds)
    return Result(
        case=case,
        seconds=round(end.seconds, 2),
        mb_per_s=round(end.bytes_total / end.seconds / 1e6, 1),
        share=round(end.bytes_total / end.seconds / wire, 3),
        settled=round(settled / wire, 3),
        connections=statistics.median(sample.concurrency for sample in late),
        most=max(sample.concurrency for sample in samples),
        requests=end.requests,
        refused=end.retries,
    )


def main() -> None:
    """Run both cases and print their shares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of transfer at full speed, each (default 10)"
    )
    parser.add_argument("--cap-mb-s", type=float, default=20.0, help="of each connection (default 20)")
    parser.add_argument("--limit", type=int, default=32, help="connections allowed (default 32)")
    parser.add_argument(
        "--bears", type=int, default=8, help="connections above which it answers 503 (default 8)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    cap = options.cap_mb_s * 1e6
    for case, bears in (("capped", None), ("refusing", options.bears)):
        result = load(case, cap, options.limit, bears, options.seconds)
        if options.json:
            print(json.dumps({**asdict(result), "load_average": os.getloadavg()[0]}))
        else:
            print(
                f"{result.case:9} {result.mb_per_s:7.1f} MB/s in {result.seconds:5.2f} s: {result.share:.2f} of the "
                f"store's, {result.settled:.2f} in the second half; {result.connections:g} connections (most "
                f"{result.most}), {result.requests} requests, {result.refused} refused"
            )


if __name__ == "__main__":
    main()
