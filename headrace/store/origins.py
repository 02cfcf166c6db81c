"""One kept connection for each origin that redirects lead to."""

import threading

from headrace.source.web_address import WebAddress
from headrace.store.http.connect import endpoint_of
from headrace.store.http.connection import HttpConnection
from headrace.store.http.trust import Trust

_MOST_ORIGINS = 4


class Origins:
    """Connections to a few origins. Belongs to one thread; only `abort` may come from another."""

    def __init__(self, trust: Trust, stall_timeout_s: float) -> None:
        self._trust, self._stall_timeout_s = trust, stall_timeout_s
        self._connections: dict[str, HttpConnection] = {}
        self._lock = threading.Lock()
        self._aborted = False

    def be_patient(self, stall_timeout_s: float) -> None:
        """Bear silences of this length from the next connection that is asked for."""
        self._stall_timeout_s = stall_timeout_s

    def to(self, address: WebAddress, named_by: str = "the URL") -> HttpConnection:
        """The connection to an address's origin; the one used longest ago may be closed for it.

        Args:
            named_by: what a person corrects where the origin is not reached.
        """
        with self._lock:
            found = self._connections.pop(address.origin, None)
            if found is None:
                endpoint = endpoint_of(address.origin, self._trust, named_by=named_by)
                found = HttpConnection(endpoint, stall_timeout_s=self._stall_timeout_s)
                if self._aborted:
                    found.abort()
            self._connections[address.origin] = found  # the last one is the one used last
            if len(self._connections) > _MOST_ORIGINS:
                self._connections.pop(next(iter(self._connections))).close()
        found.be_patient(self._stall_timeout_s)
        return found

    def abort(self) -> None:
        """End whatever is under way in another thread; later requests fail."""
        with self._lock:
            self._aborted = True
            for connection in self._connections.values():
                connection.abort()

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        with self._lock:
            for connection in self._connections.values():
                connection.close()
