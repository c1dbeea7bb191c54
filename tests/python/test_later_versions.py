"""A peer of a later version may send more than this one knows (docs/protocol.md, "Versions")."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from acespec_edge import _core

GOLDEN = sorted((Path(__file__).parents[1] / "vectors" / "wire").glob("*.hex"))


def with_another_field(data: bytes) -> bytes:
    """The message with one field more in its root table: a new vtable at the end, whose last entry points to
    where the first field lies.
    """
    (table,) = struct.unpack_from("<I", data, 0)
    (distance,) = struct.unpack_from("<i", data, table)
    (size,) = struct.unpack_from("<H", data, table - distance)
    fields = data[table - distance + 4 : table - distance + size]
    grown = bytearray(data + b"\0" * (-len(data) % 4))
    struct.pack_into("<i", grown, table, table - len(grown))
    known = 24  # no message of this version has as many fields
    slots = fields + b"\0" * (2 * known - len(fields)) + struct.pack("<H", 4)
    table_size = data[table - distance + 2 : table - distance + 4]
    return bytes(grown) + struct.pack("<H", 4 + len(slots)) + table_size + slots


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_a2_fields_that_are_not_known_are_passed_over(path: Path) -> None:
    data = bytes.fromhex(path.read_text())
    later = with_another_field(data)
    assert later != data
    assert _core.decode(later) == _core.decode(data)
