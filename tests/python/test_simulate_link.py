"""The link in virtual time: every arrival to the microsecond."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from acespec_edge.errors import LinkError
from acespec_edge.simulate.clock import World
from acespec_edge.simulate.link import Network, VirtualLink

TCP = 40
UP, DOWN = 6, 2


class Echo:
    """Sends every message back at once, and notes when it came."""

    def __init__(self, world: World, send: Callable[[bytes], None]) -> None:
        self.arrivals: list[float] = []
        self.ended = False
        self._world = world
        self._send = send

    def receive(self, data: bytes) -> None:
        self.arrivals.append(self._world())
        self._send(data)

    def lost(self) -> None:
        self.ended = True


def run(network: Network, live: Callable[[World, VirtualLink, Echo], None], seed: int = 0) -> Echo:
    world = World()
    peers: list[Echo] = []

    def connect(send: Callable[[bytes], None]) -> Echo:
        peers.append(Echo(world, send))
        return peers[0]

    link = VirtualLink(world, network, connect, seed)
    world.spawn(lambda: live(world, link, peers[0]))
    world.run()
    return peers[0]


def test_a_message_takes_half_the_round_trip_and_its_bytes_each_way() -> None:
    def live(world: World, link: VirtualLink, echo: Echo) -> None:
        link.send(bytes(94))
        received = link.receive(1.0)
        up = (94 + UP + TCP) * 8 / 50e3 + 0.05
        assert echo.arrivals == [pytest.approx(up, abs=1e-12)]
        assert received is not None
        assert received.at == world() == pytest.approx(up + (94 + DOWN + TCP) * 8 / 1e6 + 0.05, abs=1e-12)
        assert (link.bytes_up, link.bytes_down) == (94, 94)

    run(Network(0.1, 50e3, 1e6), live)


def test_messages_of_a_direction_queue_and_long_headers_count() -> None:
    def live(world: World, link: VirtualLink, echo: Echo) -> None:
        for size in (126, 10):
            link.send(bytes(size))
        world.wait(10.0)
        first = (126 + UP + 2 + TCP) * 8 / 50e3
        second = first + (10 + UP + TCP) * 8 / 50e3
        assert echo.arrivals == pytest.approx([first + 0.01, second + 0.01])

    run(Network(0.02, 50e3, None), live)


def test_waits_end_at_their_time_and_what_arrived_meanwhile_is_there_at_once() -> None:
    def live(world: World, link: VirtualLink, echo: Echo) -> None:
        assert link.receive(0.3) is None
        assert world() == 0.3
        link.send(b"x")
        assert link.receive(0.0) is None
        world.wait(2.0)
        received = link.receive(5.0)
        assert received is not None
        assert (received.at, world()) == (pytest.approx(0.4), 2.0)

    run(Network(0.1), live)


def test_jitter_keeps_the_order_and_the_seed_fixes_it() -> None:
    def arrivals(seed: int) -> list[float]:
        def live(world: World, link: VirtualLink, echo: Echo) -> None:
            for _ in range(50):
                link.send(b"x")
                world.wait(world() + 0.001)
            world.wait(1.0)

        return run(Network(0.1, jitter=0.04), live, seed).arrivals

    found = arrivals(3)
    assert found == sorted(found)
    assert found == arrivals(3)
    assert found != arrivals(4)
    assert min(found) >= 0.01


def test_a_closed_link_takes_nothing_and_tells_the_peer() -> None:
    def live(world: World, link: VirtualLink, echo: Echo) -> None:
        link.close()
        link.close()
        with pytest.raises(LinkError):
            link.send(b"x")
        with pytest.raises(LinkError):
            link.receive(0.1)

    assert run(Network(0.1), live).ended
