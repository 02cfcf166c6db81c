"""Who may sign requests to the demo's store, and the certificate that it shows."""

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

READ_ONLY = ("Read", "List")


@dataclass(frozen=True, slots=True)
class Identity:
    """Someone who may sign requests.

    Attributes:
        name: "anonymous", with an empty access key, is whoever does not sign.
        actions: what SeaweedFS lets them do: "Admin", "Read", "Write", "List", "Tagging", each for all
            buckets or for one ("Read:bucket").
    """

    name: str
    access_key: str
    secret_key: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate and key (PEM) for https; the certificate's file must hold its CA too, and be valid for 127.0.0.1."""

    certificate: Path
    key: Path


def new_identity(name: str, actions: Sequence[str]) -> Identity:
    """An identity with random keys."""
    access_key = "HR" + secrets.token_hex(9).upper()
    return Identity(name, access_key, secrets.token_urlsafe(30), tuple(actions))


def write_identities(path: Path, identities: Sequence[Identity]) -> None:
    """The file that SeaweedFS reads them from; only this user may read it."""
    content = {
        "identities": [
            {
                "name": identity.name,
                "credentials": [{"accessKey": identity.access_key, "secretKey": identity.secret_key}]
                if identity.access_key
                else [],
                "actions": list(identity.actions),
            }
            for identity in identities
        ]
    }
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
