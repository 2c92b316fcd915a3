"""How a hub and a tenant prove to each other that they know a namespace's token, and the frames that follow.

    hub     HELLO   the protocol's name and version, and a nonce
    tenant  CLAIM   the namespace, another nonce, and an HMAC over both nonces
    hub     ANSWER  a byte that is 1 and an HMAC over both nonces, or zeros for a refusal

The HMACs are SHA-256. Their key is the token, which is never sent. A recorded connection is of no use to a stranger,
since the hub's nonce is a new one each time. After the proof each frame has an HMAC over its direction, its number and
its bytes, under a key made of the token and both nonces, so a stranger cannot add, change, repeat or reorder frames.
Frames are not encrypted.
"""

import hashlib
import hmac
import json
import os
import struct
from dataclasses import dataclass
from typing import Any

PROTOCOL = b"hpchub03"
NONCE, DIGEST, NAME, TAG = 16, 32, 64, 16
HELLO = len(PROTOCOL) + NONCE
CLAIM = len(PROTOCOL) + NAME + NONCE + DIGEST
ANSWER = 1 + DIGEST
HEAD = 4  # bytes of a frame's length
_TENANT, _HUB = b"tenant", b"hub"


class BadProof(Exception):
    """Bytes that no holder of the token has sent."""


def _hmac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def hello() -> bytes:
    return PROTOCOL + os.urandom(NONCE)


def is_hello(data: bytes) -> bool:
    return len(data) == HELLO and data.startswith(PROTOCOL)


def claim(greeting: bytes, name: str, token: bytes) -> bytes:
    """Returns a tenant's answer to the hub's HELLO. name: the namespace, at most 64 bytes."""
    said = name.encode().ljust(NAME, b"\0")
    nonce = os.urandom(NONCE)
    return PROTOCOL + said + nonce + _hmac(token, _TENANT, greeting, said, nonce)


def name_in(data: bytes) -> str:
    """Returns the namespace that a CLAIM names. Raises BadProof for bytes that are no CLAIM."""
    if not data.startswith(PROTOCOL):
        raise BadProof("the bytes are of another protocol")
    try:
        return data[len(PROTOCOL) :][:NAME].rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError:
        raise BadProof("the name is not ASCII") from None


def check_claim(greeting: bytes, data: bytes, token: bytes) -> None:
    """Raises BadProof unless the caller has proven in its CLAIM that it knows the token."""
    said, nonce, proof = _parts(data)
    if not hmac.compare_digest(proof, _hmac(token, _TENANT, greeting, said, nonce)):
        raise BadProof("another token")


def answer(greeting: bytes, data: bytes, token: bytes) -> bytes:
    return b"\1" + _hmac(token, _HUB, greeting, *_parts(data)[:2])


def refusal() -> bytes:
    return bytes(ANSWER)


def check_answer(greeting: bytes, data: bytes, found: bytes, token: bytes) -> None:
    """Raises BadProof unless the hub has proven in its ANSWER that it knows the token."""
    if not hmac.compare_digest(found, answer(greeting, data, token)):
        raise BadProof("another token")


def _parts(data: bytes) -> tuple[bytes, bytes, bytes]:
    at = len(PROTOCOL)
    return data[at : at + NAME], data[at + NAME : at + NAME + NONCE], data[at + NAME + NONCE :]


def secret_of(token: bytes, nonce: str) -> bytes:
    """Returns the secret of a job's contexts, by which its ranks prove their other connections."""
    return _hmac(token, b"job", nonce.encode())


@dataclass
class Seal:
    """Makes and checks the frames of one end of a connection."""

    key: bytes
    own: bytes
    theirs: bytes
    sent: int = 0
    taken: int = 0

    def closed(self, kind: bytes, body: bytes) -> bytes:
        """Returns a frame: its length, its kind (one byte), the body and the tag."""
        head, tag = self.around(kind, body)
        return head + body + tag

    def around(self, kind: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Returns the parts of the next frame before and after its body."""
        tag = self._tag(self.own, self.sent, kind, body)
        self.sent += 1
        return struct.pack(">I", len(kind) + len(body) + TAG) + kind, tag

    def opened(self, frame: bytes) -> tuple[bytes, bytes]:
        """Returns the kind and the body of a frame, given without its length. Raises BadProof for a wrong tag."""
        kind, body, tag = frame[:1], frame[1:-TAG], frame[-TAG:]
        if not hmac.compare_digest(tag, self._tag(self.theirs, self.taken, kind, body)):
            raise BadProof("a frame was changed")
        self.taken += 1
        return kind, body

    def _tag(self, role: bytes, number: int, kind: bytes, body: bytes) -> bytes:
        return _hmac(self.key, role, struct.pack(">Q", number), kind, body)[:TAG]


def length_of(head: bytes, most: int) -> int:
    """Returns how many bytes of a frame follow its head. Raises BadProof for a length that no frame may have."""
    n = int(struct.unpack(">I", head)[0])
    if not 1 + TAG <= n <= most + 1 + TAG:
        raise BadProof(f"a frame of {n} bytes")
    return n


def as_request(kind: bytes, body: bytes) -> dict[str, Any]:
    """Returns the request in a frame. Raises BadProof for another frame: a tenant with a token may be broken too."""
    if kind != b"J":
        raise BadProof("a frame is no request")
    return as_table(body)


def as_table(body: bytes) -> dict[str, Any]:
    """Returns the names and values in the body of a frame. Raises BadProof for another body."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadProof("a frame has no names and values")
    return found


def seal(greeting: bytes, data: bytes, token: bytes, *, is_hub: bool) -> Seal:
    """Returns the Seal of a connection whose ends have proven themselves by these messages."""
    key = _hmac(token, b"session", greeting, *_parts(data)[:2])
    return Seal(key, _HUB, _TENANT) if is_hub else Seal(key, _TENANT, _HUB)
