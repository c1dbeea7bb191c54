"""One of several clouds: a link turns to the next until one says Welcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acespec_edge import _core
from acespec_edge.edge import EdgeRuntime
from acespec_edge.endpoints import Endpoint, Endpoints
from acespec_edge.errors import LinkError, UsageError
from acespec_edge.routing import RoutedLink, connector_to, routed
from acespec_edge.transport import Connector, Link, Received
from tests.python.edge_kit import DRAFTER, PROMPT, TARGET
from tests.python.fake_bundle import make_bundle
from tests.python.fake_cloud import FakeCloud
from tests.python.fakes import Choose, FakeDrafter, decode_plainly

FaultCode = _core.FaultCode
HELLO = _core.encode(_core.Hello(tokenizer=bytes(32), vocabulary=64))


class Clouds:
    """Fake clouds by address, opened in the order that ``opened`` tells; a LinkError in the place of one
    is raised. Time stands still unless a test moves it."""

    def __init__(self, *behind: Callable[[], FakeCloud] | LinkError, costs: tuple[float, ...] = ()) -> None:
        self.behind = list(behind)
        self.endpoints = Endpoints(
            [Endpoint(f"wss://{index}/", cost) for index, cost in enumerate(costs or (1.0,) * len(behind))]
        )
        self.opened: list[int] = []
        self.links: list[FakeCloud] = []
        self.now = 100.0
        self.connector: Connector = routed(self.endpoints, self._open, lambda: self.now)

    def _open(self, endpoint: Endpoint) -> Link:
        index = self.endpoints.endpoints.index(endpoint)
        self.opened.append(index)
        made = self.behind[index]
        if isinstance(made, LinkError):
            raise made
        self.links.append(made())
        return self.links[-1]


def says(message: Any) -> Callable[[], FakeCloud]:
    """A cloud that answers Hello with ``message``."""
    return lambda: FakeCloud(TARGET, alter=lambda _: message)


def serves(choose: Choose = TARGET, **options: Any) -> Callable[[], FakeCloud]:
    return lambda: FakeCloud(choose, **options)


def fault(code: FaultCode, message: str, retry_after_ms: int = 0) -> _core.Fault:
    return _core.Fault(code=code, message=message, retry_after_ms=retry_after_ms)


def greet(link: Link) -> Received:
    """What the link gives after a Hello; it says nothing while it turns."""
    link.send(HELLO)
    while (received := link.receive(0.0)) is None:
        pass
    return received


def welcomed(link: Link) -> bool:
    return isinstance(_core.decode(greet(link).data), _core.Welcome)


def test_the_next_one_is_taken_when_one_is_not_reached() -> None:
    clouds = Clouds(LinkError("no route"), serves(), serves())
    assert welcomed(clouds.connector()) and clouds.opened == [0, 1]
    clouds.opened.clear()
    assert welcomed(clouds.connector()) and clouds.opened == [1], "the first is left alone for a while"
    clouds.opened.clear()
    clouds.now += 1.0
    assert welcomed(clouds.connector()) and clouds.opened == [0, 1], "it is tried again"


@pytest.mark.parametrize(
    "answer",
    [
        fault(FaultCode.busy, "full", 5000),
        fault(FaultCode.tokenizer, "another tokenizer"),
        fault(FaultCode.version, "protocol 9"),
    ],
)
def test_the_next_one_hears_the_hello_when_one_refuses_it(answer: _core.Fault) -> None:
    clouds = Clouds(says(answer), serves())
    link = clouds.connector()
    assert welcomed(link)
    first, second = clouds.links
    assert first.closed and not second.closed
    assert [len(cloud.received) for cloud in clouds.links] == [1, 1]
    assert link.bytes_up == len(HELLO) and link.bytes_down > 0


def test_the_next_one_is_taken_when_one_vanishes_before_its_welcome() -> None:
    clouds = Clouds(serves(vanish_after=0), serves())
    assert welcomed(clouds.connector()) and clouds.opened == [0, 1] and clouds.links[0].closed


def test_when_all_fail_each_reason_is_named() -> None:
    clouds = Clouds(LinkError("no route"), says(fault(FaultCode.busy, "full", 5000)), serves(vanish_after=0))
    link = clouds.connector()
    with pytest.raises(LinkError) as caught:
        greet(link)
    said = str(caught.value)
    assert "none of 3 clouds serves" in said and caught.value.retry_after == 5.0
    for part in ("wss://0/: no route", "wss://1/: the cloud is busy: full", "wss://2/: "):
        assert part in said
    assert all(cloud.closed for cloud in clouds.links)
    clouds = Clouds(LinkError("a"), LinkError("b"))
    with pytest.raises(LinkError, match=r"wss://0/: a; wss://1/: b"):
        clouds.connector()


def test_what_no_other_attempt_would_change_is_the_callers_fault() -> None:
    clouds = Clouds(says(fault(FaultCode.tokenizer, "t")), says(fault(FaultCode.version, "v")))
    with pytest.raises(UsageError, match=r"wss://0/: t; wss://1/: .*v"):
        greet(clouds.connector())


def test_a_failure_in_a_session_is_told_and_the_next_call_goes_elsewhere() -> None:
    clouds = Clouds(serves(vanish_after=1), serves())
    link = clouds.connector()
    assert welcomed(link) and clouds.opened == [0]
    for _ in range(2):
        with pytest.raises(LinkError):
            link.receive(0.0)
    clouds.opened.clear()
    assert welcomed(clouds.connector()) and clouds.opened == [1]
    clouds.now += 1.0
    clouds.opened.clear()
    assert welcomed(clouds.connector()) and clouds.opened == [0], "one loss counts once"


def test_the_time_to_the_welcome_is_measured() -> None:
    clouds = Clouds(serves(), serves())

    def late(link: FakeCloud, seconds: float) -> FakeCloud:
        receive = link.receive

        def received(timeout: float) -> Received | None:
            found = receive(timeout)
            return None if found is None else replace(found, at=clouds.now + seconds)

        link.receive = received  # type: ignore[method-assign]
        return link

    clouds.behind = [lambda: late(FakeCloud(TARGET), 0.3), lambda: late(FakeCloud(TARGET), 0.1)]
    assert welcomed(clouds.connector()) and clouds.opened == [0]
    clouds.endpoints.failed(0, clouds.now)
    assert welcomed(clouds.connector()) and clouds.opened == [0, 1]
    clouds.now += 1.0
    assert clouds.endpoints.choose(clouds.now) == [1, 0]


def test_one_that_never_answers_is_not_asked_first_again() -> None:
    clouds = Clouds(serves(silent_after=0), serves())
    link = clouds.connector()
    link.send(HELLO)
    assert link.receive(0.0) is None
    link.close()
    clouds.opened.clear()
    assert welcomed(clouds.connector()) and clouds.opened == [1]


def test_closing_it_while_it_turns_leaves_nothing_open() -> None:
    clouds = Clouds(serves(vanish_after=0), serves(), serves())
    link = clouds.connector()
    link.send(HELLO)
    opened = clouds.behind[1]

    def closed_meanwhile() -> FakeCloud:
        link.close()
        assert callable(opened)
        return opened()

    clouds.behind[1] = closed_meanwhile
    with pytest.raises(LinkError, match="the link is closed"):
        link.receive(0.0)
    assert clouds.opened == [0, 1] and all(cloud.closed for cloud in clouds.links)


def welcome(**fields: Any) -> _core.Welcome:
    return _core.Welcome(vocabulary=64, max_context=4096, max_nodes=64, **fields)


def named(target: str) -> Callable[[], FakeCloud]:
    return says(welcome(target=target))


def test_another_target_is_refused() -> None:
    clouds = Clouds(named("big"), named("other"), named("big"))
    assert welcomed(clouds.connector())
    clouds.endpoints.failed(0, clouds.now)
    clouds.opened.clear()
    assert welcomed(clouds.connector()) and clouds.opened == [1, 2]
    clouds.behind[0] = clouds.behind[2] = LinkError("gone")
    clouds.now += 10.0
    with pytest.raises(LinkError, match="it serves 'other', but the text is of 'big': all must serve one"):
        greet(clouds.connector())


def test_a_runtime_goes_on_with_another_cloud(tmp_path: Path) -> None:
    """At the next request; the text is the target's all the same."""
    clouds = Clouds(serves(), serves())
    bundle = make_bundle(tmp_path / "bundle")
    expected = decode_plainly(TARGET, PROMPT, 40)
    with EdgeRuntime(bundle, clouds.connector, drafter=FakeDrafter(DRAFTER), draft_length=4) as edge:
        assert edge.generate(PROMPT, max_tokens=40).token_ids == expected
        clouds.links[0].close()  # it is lost for whoever uses it
        assert edge.generate(PROMPT, max_tokens=40).token_ids == expected
    assert clouds.opened == [0, 1] and all(link.closed for link in clouds.links)


def test_what_cloud_may_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def connect(url: str, **options: Any) -> FakeCloud:
        asked.append((url, options))
        return FakeCloud(TARGET)

    monkeypatch.setattr("acespec_edge.routing.connect", connect)
    monkeypatch.setattr("acespec_edge.routing.local_connector", lambda target: f"local {target}")
    monkeypatch.delenv("ACESPEC_TOKEN", raising=False)
    token = tmp_path / "token"
    token.write_text("old")
    common = Endpoint("", token_file=token, ca=Path("ca.pem"))

    def made(cloud: Any, target: str | None = None, timeout: float = 60.0) -> Any:
        return connector_to(cloud, target, common, timeout)

    for nothing in (None, []):
        assert made(nothing) is None
    own: Connector = lambda: FakeCloud(TARGET)  # noqa: E731
    assert made(own) is own
    assert made("local", "model") == made(["local"], "model") == "local model"
    single = made("wss://a/")
    assert isinstance(single(), FakeCloud)
    token.write_text("new")
    several = made(["wss://a/", "wss://b/#cost=0.5", Endpoint("ws://c/")], timeout=2.0)
    assert isinstance(several(), RoutedLink)
    assert single() and len(asked) == 3
    assert asked[0] == (
        "wss://a/",
        {"token": "old", "ca": Path("ca.pem"), "client_cert": None, "client_key": None, "timeout": 10.0},
    )
    assert asked[1][0] == "wss://b/" and asked[1][1]["timeout"] == 2.0
    assert asked[2][1]["token"] == "new", "the file is read for every connection"
    for cloud, target, words in (
        ("local", None, "target must name the model"),
        (["local", "wss://a/"], None, "'local' and other addresses"),
        ("wss://a/", "model", "only cloud='local' takes one"),
        (None, "model", "only cloud='local' takes one"),
        (own, "model", "only cloud='local' takes one"),
    ):
        with pytest.raises(UsageError, match=words):
            made(cloud, target)
    token.unlink()
    with pytest.raises(UsageError, match=r"token_file .*cannot be read"):
        made("wss://a/")


def test_the_key_of_a_session_is_shown_to_the_cloud_that_gave_it_alone() -> None:
    keys = [b"a" * 16, b"b" * 16]
    clouds = Clouds(*(says(welcome(session=key)) for key in keys))
    hello = _core.Hello(tokenizer=bytes(32), vocabulary=64)

    def shown(resume: bytes) -> list[bytes]:
        """The keys in the Hellos of a connection that asks to go on with the session ``resume``."""
        del clouds.links[:]
        hello.resume = resume
        link = clouds.connector()
        link.send(_core.encode(hello))
        while link.receive(0.0) is None:
            pass
        return [heard.resume for cloud in clouds.links for heard in cloud.received]

    assert shown(b"") == [b""]
    assert shown(keys[0]) == [keys[0]]
    clouds.behind[0] = says(fault(FaultCode.busy, "full"))
    assert shown(keys[0]) == [keys[0], b""], "the second cloud never had that session"
    clouds.behind[0] = LinkError("no route")
    assert shown(keys[1]) == [keys[1]]
    clouds.now += 10.0
    clouds.behind[0] = says(welcome(session=b"c" * 16))
    assert shown(keys[1]) == [b""], "nor has the first the other's"


class Full(FakeCloud):
    """Has no room for a request; ``wait``: seconds that it wants to be left alone for."""

    def __init__(self, wait: float) -> None:
        super().__init__(TARGET)
        self._wait_ms = int(1000 * wait)

    def send(self, frame: bytes) -> None:
        message = _core.decode(frame)
        if isinstance(message, _core.Open):
            refusal = fault(FaultCode.busy, "full", self._wait_ms)
            refusal.request = message.request
            self._down(refusal)
        else:
            super().send(frame)


def test_a_request_that_finds_no_room_goes_to_a_cloud_that_has_some(tmp_path: Path) -> None:
    """At once, however long the first one would have it wait."""
    clouds = Clouds(lambda: Full(3600.0), serves())
    bundle = make_bundle(tmp_path / "bundle")
    with EdgeRuntime(bundle, clouds.connector, drafter=FakeDrafter(DRAFTER), draft_length=4) as edge:
        assert edge.generate(PROMPT, max_tokens=40).token_ids == decode_plainly(TARGET, PROMPT, 40)
        assert edge.generate(PROMPT, max_tokens=40).token_ids == decode_plainly(TARGET, PROMPT, 40)
    assert clouds.opened == [0, 1], "the full one is not asked again meanwhile"


def test_where_all_are_full_the_wait_is_told(tmp_path: Path) -> None:
    clouds = Clouds(lambda: Full(7.0), LinkError("no route"))
    bundle = make_bundle(tmp_path / "bundle")
    clouds.endpoints.failed(1, clouds.now)
    with (
        EdgeRuntime(bundle, clouds.connector, drafter=FakeDrafter(DRAFTER), draft_length=4) as edge,
        pytest.raises(LinkError, match="busy: full") as caught,
    ):
        edge.generate(PROMPT, max_tokens=40)
    assert caught.value.retry_after == 7.0
