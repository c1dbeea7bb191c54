"""Which cloud is tried first: latency, cost, back-off, and how addresses are written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from acespec_edge.endpoints import Endpoint, Endpoints
from acespec_edge.errors import UsageError

A, B, C = "wss://a/v1/spec", "wss://b/v1/spec", "wss://c/v1/spec"
COMMON = Endpoint("", token_file=Path("token"), ca=Path("ca.pem"))


def endpoints(*costs: float) -> Endpoints:
    return Endpoints([Endpoint(f"wss://{index}/", cost) for index, cost in enumerate(costs)])


def test_the_first_of_equals_comes_first() -> None:
    assert endpoints(1, 1, 1).choose(0.0) == [0, 1, 2]
    assert endpoints(3, 1, 2).choose(0.0) == [1, 2, 0]


def test_the_smallest_product_of_cost_and_latency_comes_first() -> None:
    routes = endpoints(1, 2, 1)
    routes.measured(0, 0.30, 0.0)
    routes.measured(1, 0.10, 0.0)
    assert routes.choose(0.0) == [2, 1, 0], "one that was not measured is as fast as the fastest"
    routes.measured(2, 0.25, 0.0)
    assert routes.choose(0.0) == [1, 2, 0]


def test_latency_is_smoothed_and_what_was_slow_is_forgotten() -> None:
    routes = endpoints(1, 1.5)
    for _ in range(2):
        routes.measured(0, 0.1, 0.0)
    routes.measured(1, 0.1, 0.0)
    routes.measured(0, 0.2, 0.0)
    assert routes.choose(0.0) == [0, 1], "0.13 s by now"
    routes.measured(0, 1.0, 0.0)
    assert routes.choose(0.0) == [1, 0], "0.39 s by now"
    assert routes.choose(600.0) == [1, 0] and routes.choose(6000.0) == [0, 1]


def test_what_has_failed_comes_last_until_its_back_off_ends() -> None:
    routes = endpoints(1, 1, 1)
    routes.failed(0, 10.0)
    assert routes.choose(10.9) == [1, 2, 0]
    assert routes.choose(11.0) == [0, 1, 2]
    routes.failed(1, 10.0)
    routes.failed(0, 11.0)
    assert routes.choose(10.9) == [2, 1, 0], "by the end of the back-off"
    assert routes.choose(11.0) == [1, 2, 0] and routes.choose(13.0) == [0, 1, 2]


def test_the_back_off_doubles_up_to_a_minute_and_a_welcome_ends_it() -> None:
    routes, now, waits = endpoints(1, 1), 0.0, []
    for _ in range(40):
        routes.failed(0, now)
        step = 0.5
        while routes.choose(now + step) == [1, 0]:
            step += 0.5
        waits.append(step)
        now += step
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60] and waits[-1] == 60
    routes.measured(0, 0.1, now)
    routes.failed(0, now)
    assert routes.choose(now + 1.0) == [0, 1]


def test_a_busy_cloud_is_left_alone_as_long_as_it_asks() -> None:
    routes = endpoints(1, 1)
    routes.failed(0, 0.0, 5.0)
    assert routes.choose(4.9) == [1, 0] and routes.choose(5.0) == [0, 1]


def test_after_a_back_off_one_attempt_alone_is_made() -> None:
    routes = endpoints(1, 1)
    routes.begun(0, 0.0)
    assert routes.choose(0.0) == [0, 1], "a healthy one may be asked by many"
    routes.failed(0, 0.0)
    assert routes.choose(1.0) == [0, 1]
    routes.begun(0, 1.0)
    assert routes.choose(1.5) == [1, 0], "the trial is under way"
    routes.measured(0, 0.1, 1.6)
    assert routes.choose(1.6) == [0, 1]


def test_the_order_is_always_of_all_and_a_function_of_what_was_reported() -> None:
    for seed in range(20):
        source, twin, now = random.Random(seed), endpoints(1, 2, 0.5, 1), 0.0
        routes = endpoints(1, 2, 0.5, 1)
        for _ in range(200):
            now += source.expovariate(1.0)
            index, kind, amount = source.randrange(4), source.randrange(3), source.random()
            for one in (routes, twin):
                if kind == 0:
                    one.failed(index, now, amount)
                elif kind == 1:
                    one.measured(index, amount, now)
                else:
                    one.begun(index, now)
            order = routes.choose(now)
            assert sorted(order) == [0, 1, 2, 3] and order == twin.choose(now), seed


def test_texts_are_of_one_target() -> None:
    routes = endpoints(1, 1)
    assert routes.admits("big") is None and routes.admits("big") is None
    assert routes.admits("other") == "big" and routes.admits("big") is None


def test_an_address_may_say_what_differs() -> None:
    assert Endpoint.parse(A, COMMON) == Endpoint(A, 1.0, Path("token"), Path("ca.pem"))
    told = Endpoint.parse(f"{B}#cost=2.5,token_file=/run/b.token,client_cert=c.pem,client_key=k.pem", COMMON)
    assert told == Endpoint(B, 2.5, Path("/run/b.token"), Path("ca.pem"), Path("c.pem"), Path("k.pem"))
    assert Endpoint.parse(f"{B}#", COMMON).url == B


@pytest.mark.parametrize(
    ("fragment", "words"),
    [
        ("cost=cheap", "cost is 'cheap'"),
        ("cost=0", "cost is 0 for wss://a/v1/spec: it must be above 0"),
        ("cost=-1", "cost is -1"),
        ("cost=nan", "cost is nan"),
        ("cost=inf", "cost is inf"),
        ("weight=2", "only cost=NUMBER, token_file=FILE, ca=FILE"),
        ("ca=", "only cost=NUMBER"),
        ("cost=1,,", "only cost=NUMBER"),
    ],
)
def test_what_is_wrong_with_an_address(fragment: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Endpoint.parse(f"{A}#{fragment}", COMMON)


def test_how_many_there_may_be() -> None:
    with pytest.raises(UsageError, match="cloud has 0 addresses: 1 to 16"):
        Endpoints([])
    with pytest.raises(UsageError, match="cloud has 17 addresses"):
        endpoints(*[1.0] * 17)
    with pytest.raises(UsageError, match="cloud names wss://a/v1/spec twice"):
        Endpoints([Endpoint(A), Endpoint(C), Endpoint(A, 2.0)])
