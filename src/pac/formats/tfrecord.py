"""TFRecord files and the tf.Example messages in them, without TensorFlow.

A record is: length (8 bytes), masked CRC-32C of the length, payload, masked CRC-32C of the payload. A tf.Example maps
names to lists of bytes, floats or integers, in protobuf's wire format.
"""

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pac.files import problem

Values = np.ndarray | list[bytes]


def records(path: Path) -> Iterator[bytes]:
    """The payloads of a TFRecord file, each checked against its checksum."""
    size = path.stat().st_size
    with path.open("rb") as file:
        while head := file.read(12):
            where = f"{path}, byte {file.tell() - len(head)}"
            _check(len(head) == 12, where, "a record header of 12 bytes", f"{len(head)} bytes")
            length, checksum = struct.unpack("<QI", head)
            _check(checksum == masked_crc32c(head[:8]), where, "a length with the right checksum", "another checksum")
            _check(length + 4 <= size - file.tell(), where, f"a record of {length} bytes", "the end of the file")
            payload = file.read(length)
            (checksum,) = struct.unpack("<I", file.read(4))
            _check(checksum == masked_crc32c(payload), where, "a record with the right checksum", "another checksum")
            yield payload


def _check(good: bool, where: object, expected: str, found: str) -> None:
    if not good:
        raise problem(where, expected=expected, found=found, fix="The file is damaged: download it again.")


def parse_example(payload: bytes, where: object) -> dict[str, Values]:
    """Feature name -> values: float32 or int64 arrays, or lists of bytes."""
    features: dict[str, Values] = {}
    for features_message in _messages(memoryview(payload), 1, where):
        for entry in _messages(features_message, 1, where):
            names = [bytes(name).decode("utf-8") for name in _messages(entry, 1, where)]
            lists = [item for number, item in _fields(entry, where) if number == 2]
            _check(len(names) == 1 and len(lists) == 1, where, "one name and one value in a feature", "others")
            features[names[0]] = _feature(lists[0], f"{where}, key {names[0]!r}")
    return features


def _feature(message: Any, where: object) -> Values:
    """The one list in a Feature message: 1 bytes, 2 floats, 3 integers."""
    content: list[bytes] = []
    arrays: list[np.ndarray] = []
    kind = 0
    for number, inner in _fields(message, where):
        _check(number in (1, 2, 3) and kind in (0, number), where, "a list of one kind", f"field {number}")
        kind = number
        for field, item in _fields(inner, where):
            _check(field == 1, where, "field 1 of a list", f"field {field}")
            if kind == 1:
                content.append(bytes(item))
            elif kind == 2:
                _check(len(item) % 4 == 0, where, "whole floats", f"{len(item)} bytes")
                arrays.append(np.frombuffer(item, "<f4"))
            else:
                arrays.append(np.array([item]) if isinstance(item, int) else _varints(item, where))
    if kind == 1:
        return content
    dtype = np.float32 if kind == 2 else np.int64
    return np.concatenate(arrays).astype(dtype) if arrays else np.zeros(0, dtype)


def _messages(message: Any, number: int, where: object) -> list[Any]:
    return [item for found, item in _fields(message, where) if found == number]


def _fields(message: Any, where: object) -> Iterator[tuple[int, Any]]:
    """(field number, content) of a protobuf message: an int for a varint, a view of the bytes for all else."""
    _check(isinstance(message, memoryview), where, "a message", "a number")
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at, where)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at, where)
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if wire == 2:
            length, at = _varint(message, at, where)
        else:
            _check(wire in (1, 5), where, "a protobuf wire type of 0, 1, 2 or 5", str(wire))
            length = 8 if wire == 1 else 4
        _check(at + length <= end, where, f"a field of {length} bytes", f"{end - at} bytes")
        yield number, message[at : at + length]
        at += length


def _varint(message: Any, at: int, where: object) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        _check(at < len(message), where, "more bytes of a number", "the end of the message")
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise problem(where, expected="a number of at most 10 bytes", found="more", fix="Download the file again.")


def _varints(packed: Any, where: object) -> np.ndarray:
    values = np.frombuffer(packed, np.uint8)
    if (values < 128).all():  # small numbers and flags, one byte each
        return values.astype(np.int64)
    numbers, at = [], 0
    while at < len(packed):
        value, at = _varint(packed, at, where)
        numbers.append(value - (1 << 64) if value >> 63 else value)
    return np.array(numbers, np.int64)


def masked_crc32c(content: bytes) -> int:
    """TFRecord's masked CRC-32C (Castagnoli)."""
    crc = crc32c(content)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(content: bytes) -> int:
    """CRC-32C. Long inputs are cut into equal lanes that advance together, one table lookup for all, and are then
    joined: appending n zero bytes to a checksum is linear, so it is a table too.
    """
    table = _table()
    width = 1 << max(0, (len(content).bit_length() - 1) // 2)  # bytes in a lane: near the square root
    num_lanes = len(content) // width if width >= 64 else 0
    crc = np.uint32(0xFFFFFFFF)
    if num_lanes:
        lanes = np.frombuffer(content, np.uint8, num_lanes * width).reshape(num_lanes, width)
        state = np.zeros(num_lanes, np.uint32)
        for column in np.ascontiguousarray(lanes.T):
            state = (state >> np.uint32(8)) ^ table[(state ^ column) & np.uint32(255)]
        shift = _zeros(width)
        for lane in state:
            crc = _apply(shift, crc) ^ lane
    value, entries = int(crc), table.tolist() if len(content) - num_lanes * width > 256 else table
    for byte in content[num_lanes * width :]:
        value = (value >> 8) ^ int(entries[(value ^ byte) & 255])
    return value ^ 0xFFFFFFFF


@cache
def _table() -> np.ndarray:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = (values >> np.uint32(1)) ^ np.where(values & np.uint32(1), np.uint32(0x82F63B78), np.uint32(0))
    return values


@cache
def _zeros(count: int) -> np.ndarray:
    """(4, 256): what `count` zero bytes make of each byte of a checksum."""
    state = np.arange(256, dtype=np.uint32) << (np.arange(4, dtype=np.uint32) * np.uint32(8))[:, None]
    for _ in range(count):
        state = (state >> np.uint32(8)) ^ _table()[state & np.uint32(255)]
    return state


def _apply(operator: np.ndarray, crc: np.uint32) -> np.uint32:
    value = int(crc)
    result = operator[0, value & 255] ^ operator[1, (value >> 8) & 255]
    return np.uint32(result ^ operator[2, (value >> 16) & 255] ^ operator[3, value >> 24])
