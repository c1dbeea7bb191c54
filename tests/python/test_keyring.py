"""Keys and their limits: files, what is compared, what is read again; the rate that a limit is."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acespec_edge.errors import UsageError
from acespec_edge.keyring import MAX_KEYS, Keyring
from acespec_edge.redaction import discreet
from acespec_edge.token_bucket import TokenBucket

LIMITS = ("requests", "tokens_per_minute")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def read(file: Path, text: str) -> Keyring:
    file.write_text(text, encoding="utf-8")
    return Keyring.read(file, "api_key_file", LIMITS)


def test_a_line_is_a_key_its_name_and_its_limits(file: Path) -> None:
    ring = read(file, "# laptop\nabc\n\n  def  name=phone requests=2 tokens_per_minute=600\n")
    assert len(ring) == 2
    first, second = ring.find("Bearer abc"), ring.find("bearer  def ")
    assert first is not None and (first.name, first.limits) == ("line 2", {})
    assert second is not None and second.name == "phone"
    assert second.limits == {"requests": 2, "tokens_per_minute": 600}
    for wrong in ("", "abc", "Bearer", "Bearer ab", "Bearer abcd", "Basic abc", "Bearer #", "Bearer \udc80"):
        assert ring.find(wrong) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds 0 keys"),
        ("# none\n", "holds 0 keys"),
        ("s3cret s3cret2\n", r"line 1: behind the key only name=NAME, requests=NUMBER, tokens_per_minute"),
        ("s3cret sessions=3\n", "line 1: behind the key only"),
        ("abc\ns3crét\n", "line 2 has characters"),
        ("abc requests=0\n", "line 1: requests is '0': it must be 1 to"),
        ("abc requests=-1\n", "requests is '-1'"),
        ("abc requests=1e3\n", "requests is '1e3'"),
        ("abc requests=99999999999999999999\n", "requests is '9999"),
        ("s3cret\ns3cret requests=1\n", "line 2 has the key of another line"),
        ("".join(f"k{number}\n" for number in range(MAX_KEYS + 1)), "holds 1001 keys"),
        ("#" * (1 << 20) + "#", "more than 1,048,576 characters"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_its_secrets(file: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read(file, text)
    assert "s3cr" not in str(caught.value)


def test_a_file_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(UsageError, match=r"api_key_file .*cannot be read: No such file"):
        Keyring.read(file, "api_key_file", LIMITS)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="cannot be read: it is not UTF-8"):
        Keyring.read(file, "api_key_file", LIMITS)


def test_all_keys_are_compared_by_their_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(shown: bytes, kept: bytes) -> bool:
        compared.append((shown, kept))
        return shown == kept

    ring = Keyring.of("first", "second")
    monkeypatch.setattr("acespec_edge.keyring.hmac.compare_digest", compare)
    assert ring.find("Bearer first") is not None
    first, second = (hashlib.sha256(secret).digest() for secret in (b"first", b"second"))
    assert compared == [(first, first), (first, second)]
    assert b"second" not in repr(vars(ring)).encode()


def test_a_file_that_changes_is_read_again(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = read(file, "old\n")
    file.write_text("old\nnew-one requests=1\n", encoding="utf-8")
    key = ring.find("Bearer new-one")
    assert key is not None and key.limits == {"requests": 1} and ring.find("Bearer old") is not None
    file.write_text("new-one\n", encoding="utf-8")
    assert ring.find("Bearer old") is None and ring.find("Bearer new-one") is not None
    with caplog.at_level(logging.WARNING):
        file.write_text("new-one broken\n", encoding="utf-8")
        assert ring.find("Bearer new-one") is not None, "what was right stays"
        assert ring.find("Bearer new-one") is not None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "line 1: behind the key" in caplog.text and "broken" not in caplog.text
    os.unlink(file)
    assert ring.find("Bearer new-one") is not None


def test_headers_in_logs_show_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    logger = discreet("tests.discreet")
    with caplog.at_level(logging.DEBUG):
        logger.debug("> %s: %s", "Authorization", "Bearer s3cret")
        logger.debug("headers %r", [(b"authorization", b"Bearer s3cret")])
        logger.debug("> %s: %s", "Host", "example.com")
    assert "s3cret" not in caplog.text and "Host: example.com" in caplog.text
    assert caplog.text.count("[not shown]") == 2


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(10, 20, now=100.0)
    assert bucket.wait(20, 100.0) == 0
    bucket.spend(20, 100.0)
    assert bucket.wait(5, 100.0) == 0.5
    assert bucket.wait(5, 99.0) == 0.5, "a clock that was read late takes nothing back"
    assert bucket.wait(5, 100.5) == 0
    assert bucket.wait(50, 100.5) == 1.5, "more than it holds is waited for until it is full"
    bucket.spend(25, 100.5)
    assert bucket.wait(1, 100.5) == pytest.approx(2.1), "overdrawn"
    assert bucket.wait(20, 1e6) == 0 and bucket.wait(0, 1e6) == 0


@given(
    rate=st.integers(1, 100),
    capacity=st.integers(1, 100),
    asked=st.lists(st.tuples(st.floats(0, 10), st.integers(1, 100)), max_size=50),
)
def test_a_bucket_never_gives_more_than_burst_and_rate(
    rate: int, capacity: int, asked: list[tuple[float, int]]
) -> None:
    bucket, now, given_out = TokenBucket(rate, capacity, 0.0), 0.0, 0
    for later, amount in asked:
        now += later
        if amount <= capacity and bucket.wait(amount, now) == 0:
            bucket.spend(amount, now)
            given_out += amount
        assert given_out <= capacity + rate * now + 1e-6
