"""Writes seeds of the server's fuzz targets: `python -m tests.fuzz.write_seeds FOLDER` makes FOLDER/TARGET/seed-NUMBER.

What bytes from 128 on stand for in those of HTTP is said in fuzz_http1.cpp and fuzz_http2.cpp.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.messages import message

# Of fuzz_http1.cpp: 128 + the number of a fragment; from 250 on 20,000 bytes.
POST, GET, HEAD, HOST, LENGTH_5, LENGTH_40000, CHUNKED, CLOSE, KEEP_ALIVE, EXPECT = range(128, 138)
ALL_CHUNKED, ALL_POST, NAME, NEW_LINE, EMPTY_LINE, CHUNK, LONG_CHUNK, LAST_CHUNK, TRAILER, VERSION, ORIGIN = range(
    138, 149
)
MANY = 250

# Of fuzz_http2.cpp: the first byte says how the rest is cut. Behind FRAME are its type, flags and length, behind FIELDS
# their length.
FRAME, FIELDS = 238, 239
CALL, STREAM, REFUSED, OPEN_HEAD, TRAILERS, DATA, END, EMPTY_END, LARGE, EMPTY_MESSAGES = range(240, 250)
RESET, RESET_OTHER, WINDOW, SMALL_WINDOWS, CONTINUATION, PING = range(250, 256)


def http1() -> Iterator[bytes]:
    yield bytes([GET, GET, ALL_POST])
    yield bytes([POST, HOST, LENGTH_5, NEW_LINE]) + b"hello" + bytes([GET])
    yield bytes([POST, HOST, LENGTH_40000, EXPECT, NEW_LINE, MANY, MANY])
    yield bytes([ALL_CHUNKED, CHUNK, CHUNK, LONG_CHUNK, MANY, NEW_LINE, LAST_CHUNK, GET])
    yield bytes([POST, HOST, CHUNKED, NAME, NEW_LINE, CHUNK, TRAILER, ALL_POST])
    yield bytes([HEAD, KEEP_ALIVE, NEW_LINE, HEAD, CLOSE, NEW_LINE, GET])
    yield bytes([POST, HOST, ORIGIN, LENGTH_5, CHUNKED, NEW_LINE])
    yield b"GET /v " + bytes([VERSION, NEW_LINE, HOST, EMPTY_LINE, GET])
    yield b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\nA : b\r\n\tc\r\n\r\n"


def http2() -> Iterator[bytes]:
    for cut in (0, 1, 7, 85, 170, 255):
        yield bytes([cut, CALL, END, CALL, DATA, EMPTY_END, STREAM, DATA, DATA, END])
    yield bytes([3, CALL, LARGE, LARGE, LARGE, LARGE, LARGE, CALL, END])
    yield bytes([4, STREAM, EMPTY_MESSAGES, EMPTY_MESSAGES, RESET, CALL, END])
    yield bytes([5, REFUSED, END, CALL, RESET, CALL, RESET_OTHER, PING, PING])
    yield bytes([6, SMALL_WINDOWS, CALL, END, WINDOW, WINDOW, STREAM, DATA, END])
    yield bytes([8, OPEN_HEAD, CONTINUATION, END, CALL, DATA, TRAILERS])
    head = b"\x83\x86\x44\x02/a\x41\x01a\x5f\x10application/grpc"  # the last three are added to HPACK's table
    text = b"\x40\x03a-b\x81\x1f\x00\x03c-d\x01e"  # one in Huffman's code, which is added too; one that is not
    again = b"\x83\x86\xc1\xc0\xbf\xbe"  # all of the table
    cleared = b"\x20" + head
    fields = [bytes([FIELDS, len(block)]) + block for block in (head, head + text, again, cleared)]
    yield bytes([9]) + bytes([END]).join(fields) + bytes([DATA, EMPTY_END])
    settings, priority, goaway = (4, 0, 0x86), (2, 0, 5), (7, 0, 0x88)  # from 0x80 on: of the connection
    frames = [bytes([FRAME, *kind]) + bytes(kind[2] & 0x3F) for kind in (settings, priority, (0, 8, 6), goaway)]
    yield bytes([30, CALL]) + b"".join(frames) + bytes([EMPTY_END, CALL, END])


def infer_json() -> Iterator[bytes]:
    x = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, -2.5], [3e10, 0]]}
    text = {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["a", "\u00e4\U0001f600\n"]}
    flags = {"name": "b", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    binary = {"name": "y", "datatype": "INT64", "shape": [1], "parameters": {"binary_data_size": 8}}
    outputs = [{"name": "z", "parameters": {"binary_data": True, "classification": 0}}]
    parameters = {"timeout": 1000, "priority": 2, "binary_data_output": True, "other": [None, {"a": []}]}
    for document in (
        {"inputs": [x]},
        {"id": "7", "inputs": [x, text, flags, binary], "outputs": outputs, "parameters": parameters},
        {"inputs": [{**x, "data": [float("nan"), float("-inf"), 9007199254740993, 1e-400]}], "outputs": []},
        {"inputs": [{**x, "shape": [-1, "2", 1.5, 2**70], "parameters": {"shared_memory_region": "r"}}]},
        {"inputs": ["2", x]},  # refused before values are read
    ):
        yield json.dumps(document).encode()
        yield json.dumps(document, ensure_ascii=False, indent=1).encode()


def infer_protobuf() -> Iterator[bytes]:
    raw = message("ModelInferRequest")(model_name="m", model_version="1", id="7")
    raw.inputs.add(name="x", datatype="FP32", shape=[2, 2])
    raw.raw_input_contents.append(bytes(16))
    raw.outputs.add(name="z")
    raw.parameters["timeout"].int64_param = 1000
    raw.parameters["priority"].string_param = "2"
    yield raw.SerializeToString()
    typed = message("ModelInferRequest")(model_name="m")
    for datatype, field, values in (
        ("FP32", "fp32_contents", [1.5, -2]),
        ("INT64", "int64_contents", [-1, 2**62]),
        ("BOOL", "bool_contents", [True, False]),
        ("BYTES", "bytes_contents", [b"a", b"\xc3\xa4"]),
        ("UINT8", "uint_contents", [0, 255]),
        ("FP64", "fp64_contents", [0.1, 1e300]),
    ):
        tensor = typed.inputs.add(name=field, datatype=datatype, shape=[2])
        getattr(tensor.contents, field).extend(values)
        yield typed.SerializeToString()


def offers() -> Iterator[bytes]:
    message = struct.pack("24s40s64s512sQq", b"ortmulti weights 1", b"key", b"GPU-0", b"m.onnx", 4096, 1)
    for how in (0, 1, 2, 3, 5, 9):  # fuzz_offers.cpp says what it stands for
        yield bytes([how]) + message
    yield bytes([1]) + message[:-1]


def vectors() -> Iterator[bytes]:
    wishes = {"model": "m", "dimensions": 3, "normalize": False, "truncate": True, "prompt_name": "query", "user": "u"}
    for document in (
        {"input": "a"},
        {"input": ["a", "\u00e4\U0001f600\n"], **wishes, "encoding_format": "base64"},
        {"inputs": ["a"], **wishes, "truncation_direction": "left"},
        {"inputs": ["a", 1]},
    ):
        yield json.dumps(document).encode()
        yield json.dumps(document, ensure_ascii=False, indent=1).encode()


def main(folder: Path) -> None:
    for target in (http1, http2, infer_json, infer_protobuf, offers, vectors):
        place = folder / target.__name__
        place.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target()):
            (place / f"seed-{number}").write_bytes(seed)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
