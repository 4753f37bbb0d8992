"""Who is asking. A key is known by its SHA-256 only; a token made from it carries the key's owner for
half a day."""

import base64
import hashlib
import hmac
import json
import time

from tinker_engine.errors import AccessError

PREFIX = "tml-"  # the SDK refuses keys that begin otherwise
TOKEN_SECONDS = 12 * 3600


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


class Access:
    def __init__(self, owners: dict[str, str], secret: str):
        """`owners` by the digest of their key; `secret` signs tokens."""
        self._owners = owners
        self._secret = secret.encode()

    def owner(self, credential: str | None) -> str:
        if not credential:
            raise AccessError(
                "no key was sent; set TINKER_API_KEY, or run your command with: tinker-engine run -- COMMAND"
            )
        if credential.startswith("eyJ"):
            owner = self._claims(credential).get("sub")
            owner = owner if owner in self._owners.values() else None
        else:
            owner = self._owners.get(digest(credential))
        if not isinstance(owner, str):
            raise AccessError("this key is not known here; check TINKER_API_KEY and TINKER_BASE_URL")
        return owner

    def token(self, owner: str) -> str:
        """A JWT, as the SDK's `whoami` reads it."""
        return self._sign({"sub": owner, "org_id": "local", "email": f"{owner}@localhost"})

    def link(self, checkpoint: str) -> str:
        """Opens the files of one checkpoint and nothing else, for whoever has it."""
        return self._sign({"checkpoint": checkpoint})

    def check_link(self, token: str, checkpoint: str) -> None:
        if self._claims(token).get("checkpoint") != checkpoint:
            raise AccessError("this link opens another checkpoint; ask for the links again")

    def _sign(self, claims: dict[str, object]) -> str:
        header = {"alg": "HS256", "typ": "JWT"}
        claims = claims | {"exp": float(int(time.time()) + TOKEN_SECONDS)}
        signed = f"{_encode(json.dumps(header).encode())}.{_encode(json.dumps(claims).encode())}"
        return f"{signed}.{self._signature(signed)}"

    def _claims(self, token: str) -> dict[str, object]:
        signed, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._signature(signed).encode(), signature.encode()):
            raise AccessError("the token was not made by this server; check TINKER_BASE_URL")
        claims = json.loads(_decode(signed.partition(".")[2]))
        if claims["exp"] < time.time():
            raise AccessError("the token has expired; ask for another")
        return claims

    def _signature(self, signed: str) -> str:
        return _encode(hmac.digest(self._secret, signed.encode(), "sha256"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
