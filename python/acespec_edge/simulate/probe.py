"""How long a real cloud takes to answer."""

from __future__ import annotations

import time
from typing import Final

from acespec_edge import _core
from acespec_edge.errors import LinkError
from acespec_edge.transport import Connector

_SAMPLES: Final = 3
_TIMEOUT: Final = 10.0


def round_trip(connect: Connector) -> float:
    """Seconds from a Hello to its answer, the shortest of a few; what the answer says is not looked at, so
    that any target of any tokenizer will do. Raises LinkError when there is none within 10 s."""
    hello = _core.encode(_core.Hello(tokenizer=bytes(32), vocabulary=1, drafter="acespec plan"))
    taken = []
    for _ in range(_SAMPLES):
        link = connect()
        try:
            began = time.monotonic()
            link.send(hello)
            received = link.receive(_TIMEOUT)
            if received is None:
                raise LinkError(f"the cloud did not answer a Hello within {_TIMEOUT:g} s")
            taken.append(received.at - began)
        finally:
            link.close()
    return min(taken)
