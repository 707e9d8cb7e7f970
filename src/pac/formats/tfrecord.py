"""TFRecord files and the tf.Example messages in them, without TensorFlow.

A record is: length (8 bytes), masked CRC-32C of the length, payload, masked CRC-32C of the payload. A tf.Example maps
names to lists of bytes, floats or integers, in protobuf's wire format.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem
from pac.formats.checks import DAMAGED, check, need

Values = np.ndarray | list[bytes]


def read_records(path: Path) -> Iterator[bytes]:
    """Yield the payloads of a TFRecord file, each checked against its checksum."""
    crc32c = need("google_crc32c", "formats").value
    size = path.stat().st_size
    with path.open("rb") as file:
        while head := file.read(12):
            where = f"{path}, byte {file.tell() - len(head)}"
            check(len(head) == 12, where, "a record header of 12 bytes", f"{len(head)} bytes")
            length, checksum = struct.unpack("<QI", head)
            check(checksum == _masked(crc32c(head[:8])), where, "a length with the right checksum", "another checksum")
            check(length + 4 <= size - file.tell(), where, f"a record of {length} bytes", "the end of the file")
            payload = file.read(length)
            (checksum,) = struct.unpack("<I", file.read(4))
            check(checksum == _masked(crc32c(payload)), where, "a record with the right checksum", "another checksum")
            yield payload


def _masked(crc: int) -> int:
    """Return a checksum as TFRecord stores it."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def parse_example(payload: bytes, where: object) -> dict[str, Values]:
    """Return the features by name: float32 or int64 arrays, or lists of bytes."""
    features: dict[str, Values] = {}
    for features_message in _messages(memoryview(payload), 1, where):
        for entry in _messages(features_message, 1, where):
            names = [bytes(name).decode("utf-8") for name in _messages(entry, 1, where)]
            lists = _messages(entry, 2, where)
            check(len(names) == 1 and len(lists) == 1, where, "one name and one value in a feature", "others")
            features[names[0]] = _feature(lists[0], f"{where}, key {names[0]!r}")
    return features


def _feature(message: Any, where: object) -> Values:
    """Return the one list in a Feature message: field 1 holds bytes, 2 floats, 3 integers."""
    content: list[bytes] = []
    arrays: list[np.ndarray] = []
    kind = 0
    for number, inner in _fields(message, where):
        check(number in (1, 2, 3) and kind in (0, number), where, "a list of one kind", f"field {number}")
        kind = number
        for item in _messages(inner, 1, where):
            if kind == 1:
                content.append(bytes(item))
            elif kind == 2:
                check(len(item) % 4 == 0, where, "whole floats", f"{len(item)} bytes")
                arrays.append(np.frombuffer(item, "<f4"))
            else:
                arrays.append(np.array([item]) if isinstance(item, int) else _varints(item, where))
    if kind == 1:
        return content
    dtype = np.float32 if kind == 2 else np.int64
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _messages(message: Any, number: int, where: object) -> list[Any]:
    """Return the contents of all fields with this number."""
    return [item for found, item in _fields(message, where) if found == number]


def _fields(message: Any, where: object) -> Iterator[tuple[int, Any]]:
    """Yield (field number, content) of a protobuf message: an int for a varint, else a view of the bytes."""
    check(isinstance(message, memoryview), where, "a message", "a number")
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at, where)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at, where)
            yield number, _signed(value)
            continue
        if wire == 2:
            length, at = _varint(message, at, where)
        else:
            check(wire in (1, 5), where, "a protobuf wire type of 0, 1, 2 or 5", wire)
            length = 8 if wire == 1 else 4
        check(at + length <= end, where, f"a field of {length} bytes", f"{end - at} bytes")
        yield number, message[at : at + length]
        at += length


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _varint(message: Any, at: int, where: object) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        check(at < len(message), where, "more bytes of a number", "the end of the message")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise problem(where, expected="a number of at most 10 bytes", found="more", fix=DAMAGED)


def _varints(packed: Any, where: object) -> np.ndarray:
    values = np.frombuffer(packed, np.uint8)
    if (values < 128).all():  # small numbers and flags, one byte each
        return values.astype(np.int64)
    numbers, at = [], 0
    while at < len(packed):
        value, at = _varint(packed, at, where)
        numbers.append(_signed(value))
    return np.array(numbers, np.int64)
