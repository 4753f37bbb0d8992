"""Finding the running engine, and asking it."""

import http.client
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tinker_engine import config
from tinker_engine.errors import AccessError, EngineError, InputError

_SECONDS = 10.0  # for an answer


@dataclass(frozen=True)
class Address:
    url: str
    key: str
    pid: int | None = None
    start: str = "tinker-engine serve"  # what to type if nobody answers


def find(data: Path | None, url: str | None = None, key: str | None = None) -> Address:
    """The engine at `url`, else that of the data directory."""
    if url is not None:
        key = key or os.environ.get("TINKER_API_KEY")
        if not key:
            raise InputError("--key", "is needed with --url; give it, or set TINKER_API_KEY")
        return Address(url.rstrip("/"), key)
    folder = (data or config.data_dir()).expanduser().absolute()
    start = "tinker-engine serve" + (f" --data {folder}" if data is not None else "")
    written = read(folder)
    if written is None:
        raise EngineError(f"no engine is running on {folder}; start one with: {start}")
    return Address(written.url, key or written.key, written.pid, start)


def read(folder: Path) -> Address | None:
    """What an engine wrote about itself; a killed one leaves it behind."""
    path = folder / "engine.json"
    try:
        fields = json.loads(path.read_text())
        return Address(str(fields["url"]), str(fields["key"]), int(fields["pid"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{path} is not what an engine writes ({error!r}); delete it") from error
    except OSError as error:
        raise EngineError(f"{path} cannot be read: {error.strerror}") from error


def ask(address: Address, path: str) -> dict[str, Any]:
    """No proxy is asked: an engine is on this machine, or at an address that the user spelled out."""
    parts = urlsplit(address.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError("--url", f"must look like http://HOST:PORT, got {address.url!r}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=_SECONDS)
    try:
        connection.request("GET", parts.path + path, headers={"x-api-key": address.key})
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(
            f"no engine answers at {address.url} ({error}); start one with: {address.start}"
        ) from error
    finally:
        connection.close()
    return _content(address, status, body)


def _content(address: Address, status: int, body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except ValueError as error:
        raise EngineError(f"what answers at {address.url} is no engine (HTTP {status})") from error
    if status == 401:
        raise AccessError(f"{address.url}: {content.get('error')}")
    if status != 200:
        raise EngineError(f"{address.url} answered HTTP {status}: {content.get('error', content)}")
    return content
