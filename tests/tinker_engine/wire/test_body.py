import sys

import pytest
import zstandard

from tinker_engine.errors import InputError
from tinker_engine.wire.body import read_json, unpack


@pytest.mark.parametrize("encoding", [None, "", "identity"])
def test_a_plain_body_is_as_it_is(encoding: str | None):
    assert unpack(b"abc", encoding) == b"abc"


def test_zstd_as_the_sdk_writes_it():
    body = b"tokens" * 1000
    assert unpack(zstandard.ZstdCompressor().compress(body), "ZSTD") == body


PACKED = zstandard.ZstdCompressor().compress(b"tokens" * 1000)
STREAM = zstandard.ZstdCompressor().compressobj()


@pytest.mark.parametrize(
    ("body", "encoding", "says"),
    [
        (b"abc", "gzip", "'gzip' is not supported"),
        (b"abc", "zstd", "no whole zstd frame"),
        (b"", "zstd", "no whole zstd frame"),
        (PACKED[:-3], "zstd", "no whole zstd frame"),
        (PACKED + b"x", "zstd", "no whole zstd frame"),
        (STREAM.compress(b"abc") + STREAM.flush(), "zstd", "in one piece"),
        (zstandard.ZstdCompressor().compress(bytes(10_001)), "zstd", "unpacks to 10001 bytes; at most 10000"),
    ],
)
def test_what_cannot_be_unpacked_is_refused(body: bytes, encoding: str, says: str):
    with pytest.raises(InputError, match=says):
        unpack(body, encoding, most_bytes=10_000)


def test_without_zstandard_the_refusal_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match="install zstandard on the server"):
        unpack(PACKED, "zstd")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"3",
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b"\xff",
        b"[" * 10**5,
        b"9" * 5000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes):
    with pytest.raises(InputError, match=r"^body: "):
        read_json(body)


def test_json_is_read():
    assert read_json(b'{"a": [1, "\xc3\xa9"]}').values == {"a": [1, "é"]}
