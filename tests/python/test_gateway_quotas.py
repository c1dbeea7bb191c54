"""What one API key may take, and that the gateway speaks TLS by itself."""

from __future__ import annotations

import contextlib
import logging
import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from acespec_edge.bundle import Bundle
from acespec_edge.errors import UsageError
from acespec_edge.gateway.errors import ApiError
from acespec_edge.gateway.listening import Listener
from acespec_edge.gateway.quotas import Quota, Quotas
from acespec_edge.keyring import Key, Keyring, digest
from tests.clock import wait_until
from tests.python.edge_kit import runtime, unhurried
from tests.python.gateway_kit import chat_bundle, serving, writes

TARGET = writes("hello there, edge.")


def key(secret: str = "k", **limits: int) -> Key:
    return Key(secret, digest(secret), limits)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return chat_bundle(tmp_path_factory.mktemp("quotas"))


def beyond(quota: Quota) -> ApiError:
    with pytest.raises(ApiError) as caught, quota.admitted():
        pass
    assert caught.value.status == 429 and caught.value.code == "rate_limit_exceeded"
    return caught.value


def test_requests_at_a_time() -> None:
    quota = Quotas().of(key(requests=2))
    with quota.admitted():
        with pytest.raises(ZeroDivisionError), quota.admitted():
            assert "'k' has 2 requests at a time" in beyond(quota).message
            raise ZeroDivisionError
        with quota.admitted():
            beyond(quota)
    with quota.admitted(), quota.admitted():
        pass


def test_tokens_per_minute() -> None:
    now = [0.0]
    quota = Quotas(lambda: now[0]).of(key(tokens_per_minute=120))
    with quota.admitted():
        quota.charge(119)
    with quota.admitted():
        quota.charge(11)
    assert beyond(quota).headers["Retry-After"] == "6", "10 too many, and one to begin with, at 2 a second"
    now[0] += 5.4
    assert beyond(quota).headers["Retry-After"] == "1"
    now[0] += 0.2
    with quota.admitted():
        quota.charge(0)
    now[0] += 1000
    with quota.admitted():
        quota.charge(120)
    beyond(quota)


def test_each_key_has_its_own_and_new_limits_begin_anew() -> None:
    quotas = Quotas(lambda: 0.0)
    first, second = quotas.of(key(tokens_per_minute=1)), quotas.of(key("other", tokens_per_minute=1))
    first.charge(5)
    beyond(first)
    with second.admitted(), quotas.of(key(tokens_per_minute=2)).admitted():
        pass
    assert quotas.of(key("other", tokens_per_minute=1)) is second
    for free in (quotas.of(None), quotas.of(key("free"))):
        free.charge(1 << 40)
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(free.admitted())


def test_limits_hold_behind_the_socket(bundle: Bundle) -> None:
    keys = Keyring([key("a", requests=1, tokens_per_minute=10_000), key("b", tokens_per_minute=10), key("c")])
    slow = unhurried(TARGET)
    with serving(runtime(bundle, slow, slow), keys) as live:

        def ask(secret: str, tokens: int) -> httpx.Response:
            headers = {"Authorization": f"Bearer {secret}"}
            body = {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True}
            return live.http.post("/completions", json=body, headers=headers)

        body = {"prompt": "hi", "max_tokens": 2000, "stream": True, "ignore_eos": True}
        with live.http.stream(
            "POST", "/completions", json=body, headers={"Authorization": "Bearer a"}
        ) as stream:
            next(stream.iter_raw())
            refused = ask("a", 1)
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            error = refused.json()["error"]
            assert error["type"] == "rate_limit_error" and error["code"] == "rate_limit_exceeded"
        wait_until(lambda: live.gateway.turns.inside == 0)
        assert ask("a", 1).status_code == 200, "a stream that was left counts no more"
        assert ask("b", 12).status_code == 200
        refused = ask("b", 1)
        assert refused.status_code == 429 and 20 < int(refused.headers["retry-after"]) <= 30
        assert [ask("c", 12).status_code for _ in range(2)] == [200, 200]
        assert live.http.get("/models", headers={"Authorization": "Bearer b"}).status_code == 200


def test_tls_and_no_key_in_any_log(
    bundle: Bundle,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    listener = Listener(port=0, guarded=True, tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem")
    with (
        caplog.at_level(logging.DEBUG),
        serving(
            runtime(bundle, TARGET, TARGET), Keyring.of("s3cret"), listener=listener, verify=trusting
        ) as live,
    ):
        caplog.set_level(logging.DEBUG, "uvicorn.error")
        monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
        assert live.url.startswith("https://")
        for secret, status in (("s3cret", 200), ("s3cret2", 401)):
            answer = live.http.get("/models", headers={"Authorization": f"Bearer {secret}"})
            assert answer.status_code == status
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"{live.url}/models", trust_env=False)
    assert "s3cret" not in caplog.text


def test_half_a_pair_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--tls-cert and --tls-key"):
        Listener(tls_cert=tmp_path / "cert.pem")
