"""MessagePack, as far as sinks need it (`wit/v1/payload-msgpack.md`): bodies are framed there, and so come as they are."""

from __future__ import annotations

import struct
from typing import Any

_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
#: What a header of each kind may be, by the width of its length.
_BIN = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_STR = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_ARRAY = {0xDC: ">H", 0xDD: ">I"}
_MAP = {0xDE: ">H", 0xDF: ">I"}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def part(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise ValueError("it ends too early")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.part(struct.calcsize(layout)))[0]

    def value(self) -> Any:
        tag = self.number(">B")
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90 or tag in _MAP:
            count = tag & 0x0F if tag < 0x90 else self.number(_MAP[tag])
            # A key comes before its value.
            return dict([(self.value(), self.value()) for _ in range(count)])
        if tag < 0xA0 or tag in _ARRAY:
            count = tag & 0x0F if tag < 0xA0 else self.number(_ARRAY[tag])
            return [self.value() for _ in range(count)]
        if tag < 0xC0 or tag in _STR:
            return self.part(tag & 0x1F if tag < 0xC0 else self.number(_STR[tag])).decode()
        if tag in _BIN:
            return self.part(self.number(_BIN[tag]))
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag in _NUMBERS:
            return self.number(_NUMBERS[tag])
        raise ValueError(f"a value begins with {tag:#x}")


def decode(data: bytes) -> Any:
    """The value of some bytes. Raises a ValueError."""
    reader = _Reader(data)
    value = reader.value()
    if reader.at != len(data):
        raise ValueError("something follows it")
    return value


def encode(value: Any) -> bytes:
    """The bytes of None, booleans, integers, strings, bytes, sequences and dicts."""
    out = bytearray()
    _write(value, out)
    return bytes(out)


def _head(length: int, small: int, most: int, tags: dict[int, str], out: bytearray) -> None:
    if length <= most:
        out.append(small | length)
        return
    for tag, layout in tags.items():
        if length < 1 << (8 * struct.calcsize(layout)):
            out.append(tag)
            out += struct.pack(layout, length)
            return
    raise ValueError("it is too long")


def _write(value: Any, out: bytearray) -> None:
    match value:
        case None:
            out.append(0xC0)
        case bool():
            out.append(0xC3 if value else 0xC2)
        case int():
            if 0 <= value < 0x80:
                out.append(value)
            else:
                out += struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value)
        case str():
            data = value.encode()
            _head(len(data), 0xA0, 31, _STR, out)
            out += data
        case bytes():
            _head(len(value), 0, -1, _BIN, out)
            out += value
        case dict():
            _head(len(value), 0x80, 15, _MAP, out)
            for key, item in value.items():
                _write(key, out)
                _write(item, out)
        case list() | tuple():
            _head(len(value), 0x90, 15, _ARRAY, out)
            for item in value:
                _write(item, out)
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written")
