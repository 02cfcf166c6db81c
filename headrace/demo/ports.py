"""Free ports on loopback for services that cannot be told to pick one themselves."""

import random
import socket

# Below the range from which Linux takes the ports of outgoing connections (32768 and up), so that nobody's
# connection gets a port between our look and the service's bind.
_FIRST, _LAST = 10_240, 22_527


def free_ports(count: int, *, also_at_offset: int = 0) -> list[int]:
    """`count` different ports that nothing on 127.0.0.1 listens on now.

    With `also_at_offset` each port + offset is free too, for services that derive a second port from the
    first.
    """
    ports: list[int] = []
    # SystemRandom: tests seed the common generator, and two of them must not look at the same ports.
    for port in random.SystemRandom().sample(range(_FIRST, _LAST + 1), _LAST + 1 - _FIRST):
        if len(ports) == count:
            break
        if is_free(port) and (not also_at_offset or is_free(port + also_at_offset)):
            ports.append(port)
    assert len(ports) == count, "the machine has no free port left"
    return ports


def is_free(port: int) -> bool:
    """Whether a service could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
