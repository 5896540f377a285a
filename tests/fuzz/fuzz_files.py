"""Fuzzes the readers of files from users: `python -m tests.fuzz.fuzz_files [SECONDS [SEED [CASE]]]`.

Inputs (.npz), adapters, tunings, diagnoses (fuzz_config.py: config.pbtxt of servers): each case changes a real file, by
its structure or its bytes. A reader must return something sound or raise InvalidArgument or NoSuchFile, within bounds
of time and memory. SEED and CASE repeat one case.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import shutil
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ortmulti
from ortmulti.bench.files import read_arrays, write_arrays
from ortmulti.cli.diagnose import diagnose_command
from ortmulti.errors import InvalidArgument, NoSuchFile
from ortmulti.interface import adapter_file
from ortmulti.serve import pbtxt
from tests.fuzz import cases
from tests.support import diagnosis

MEMORY = 4 << 30
"""Bytes of address space, besides the memory at the start."""

NUMBERS = (0, 1, 2, 8, 12, 14, 99, 2**32 - 2, 2**40, 2**63, *(2**bits - 1 for bits in (7, 8, 15, 16, 31, 32, 64)))
NAMES = ("x.npy", "x", ".npy", "a/", "../x.npy", "x\0.npy", "\u00e4.npy", "y" * 300)
HEADERS = (
    "{'descr': %s, 'fortran_order': %s, 'shape': %s, }", "{'descr': %s, 'fortran_order': %s, 'shape': %s",
    "(%s, %s, %s)", "-" * 9000 + "%s%s%s", "[" * 500 + "%s%s%s", "'''%s%s%s",
)  # fmt: skip
KINDS = (
    "'<f4'", "'|O'", "'<U3'", "'|S0'", "'|V0'", "'<M8[ns]'", "'|V2147483647'", "[('a', '<f8', (3, 2))]",
    "[('a', '|O')]", "('<f8', (2, 2))", "7", "'zzz'", "None", "'<f8, |O'",
)  # fmt: skip
SHAPES = (
    "(3,)", "()", "(0,)", "(-1,)", "(-3, -3)", "(1000000000000,)", "(4611686018427387904, 4)", "(True,)", "(1.5,)", "3",
    f"({'1, ' * 70})", f"({'9' * 4000},)", "(0, 4611686018427387904)",
)  # fmt: skip
CONFIG = """max_batch_size: 8 input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ] # rows
dynamic_batching { max_queue_delay_microseconds: 100 default_queue_policy { max_queue_size: 9 } }
instance_group { count: 2 kind: KIND_GPU gpus: [0, 1] } optimization { graph { level: 1 } cuda { graphs: true } }
parameters { key: "intra_op_thread_count" value: { string_value: "3" } } ################
model_operations { op_library_filename: "a.so" } version_policy { specific { versions: [1] } }
"""
VALUES: list[Any] = [
    None, True, 0, -1, 2**31, 2**64, 10**30, 10**400, 0.5, 1e308, 5e-324, float("nan"), float("inf"), "", "a\0b",
    "\ud800", "x" * 300, "node:9", "cuda:99", [], [[]], {}, {"": {}}, [None], "cpu",
]  # fmt: skip


# --- Changes ----------------------------------------------------------------------------------------------------------


def changed_bytes(content: bytes, random: Random) -> bytes:
    """A few bytes, numbers or parts of the content are others, missing or there twice."""
    data = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        if not data:
            break
        place = random.randrange(len(data))
        how = random.randrange(5)
        if how == 0:
            data[place] = random.randrange(256)
        elif how == 1:
            code = random.choice("BHIQ")
            number = random.choice(NUMBERS) % (1 << 8 * struct.calcsize(code))
            data[place : place + struct.calcsize(code)] = struct.pack(f"<{code}", number)
        elif how == 2:
            del data[place : place + random.choice((1, 2, 4, 8, 100, len(data)))]
        elif how == 3:
            part = data[place : place + random.choice((1, 4, 8, 46, 100))]
            at = random.randrange(len(data))
            data[at:at] = part
        else:
            source = random.randrange(len(data))
            data[place : place + 8] = data[source : source + 8]
    return bytes(data)


def changed_archive(content: bytes, random: Random) -> bytes:
    """An archive of some of the same members and some others, and with other fields in its headers."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        members = [old.read(name) for name in old.namelist()]
        for name in old.namelist()[: random.randrange(4)]:
            new.writestr(name, old.read(name))
        for _ in range(random.randrange(4)):
            member = random.choice(members)
            if random.random() < 0.7:
                member = array_with_header(random) + member[random.choice((0, 10, 80, 128)) :]
            if random.random() < 0.2:
                member = changed_bytes(member, random)
            if random.random() < 0.05:
                member += bytes(1 << 24)
            new.writestr(random.choice(NAMES), member, random.choice((0, 8, 8, 8, 12, 14)))
    data = bytearray(file.getvalue())
    for _ in range(random.choice((0, 0, 1, 2))):
        signature, fields = random.choice(((b"PK\1\2", 42), (b"PK\3\4", 26), (b"PK\5\6", 18)))
        starts = [found.start() for found in re.finditer(re.escape(signature), data)]
        if starts:
            at = random.choice(starts) + random.randrange(4, fields + 1, 2)
            code = random.choice("HI")
            number = random.choice(NUMBERS) % (1 << 8 * struct.calcsize(code))
            data[at : at + struct.calcsize(code)] = struct.pack(f"<{code}", number)
    return bytes(data)


def array_with_header(random: Random) -> bytes:
    """The first part of an .npy file, up to its data."""
    text = random.choice(HEADERS) % (random.choice(KINDS), random.choice(("True", "False", "0")), random.choice(SHAPES))
    version = random.choice(((1, 0), (1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text) + 1)
    return b"\x93NUMPY" + bytes(version) + size + text.encode() + b"\n"


def changed_json(content: bytes, random: Random) -> bytes:
    """A document in which some values are others, missing or moved."""
    document = json.loads(content)
    cases.change(document, VALUES, (1,), random)
    text = json.dumps(document)
    if random.random() < 0.02:
        text = text.replace("[", "[" * random.choice((1, 2000, 200_000)), 1)
    return text.encode()


# --- Readers ----------------------------------------------------------------------------------------------------------


def read_inputs(path: Path) -> None:
    for name, array in read_arrays(path).items():
        assert isinstance(name, str)
        assert isinstance(array, np.ndarray)
        assert not array.dtype.hasobject
        array.tobytes()[:1]


def read_adapter(path: Path) -> None:
    parameters = ortmulti.AdapterFormat.read_adapter(path).get_parameters()
    total = sum(ortmulti._core.bytes_of(value._core).nbytes for value in parameters.values())
    assert total + sum(len(name.encode()) for name in parameters) <= path.stat().st_size
    ortmulti.LoraAdapter().Load(path)


def read_tuning(path: Path) -> None:
    tuning = ortmulti.Tuning.read(path)
    assert tuning.kind in ("cpu", "cuda")
    json.dumps(tuning.as_json())


def read_diagnosis(path: Path) -> None:
    document = path.with_suffix(".json")
    shutil.copyfile(path, document)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        diagnose_command(document, html=path.with_suffix(".html"))
    assert "\x1b" not in printed.getvalue()


def read_config(path: Path) -> None:
    read = pbtxt.read(path.read_bytes().decode(errors="replace"))
    assert read.max_batch_size >= 0
    assert all(isinstance(name, str) for name in (read.name, read.file, *read.libraries, *read.ignored))


Change = Callable[[bytes, Random], bytes]
TARGETS: dict[str, tuple[Callable[[Path], None], Change]] = {
    "inputs": (read_inputs, changed_archive),
    "adapter": (read_adapter, changed_bytes),
    "tuning": (read_tuning, changed_json),
    "diagnosis": (read_diagnosis, changed_json),
    "config": (read_config, changed_bytes),
}


def write_seeds(folder: Path) -> dict[str, list[bytes]]:
    """Real files of each kind."""
    arrays: dict[str, Any] = {
        "x": np.arange(1000.0).reshape(10, 100),
        "y": np.array([["a", "b"]], object),
        "z": np.asfortranarray(np.ones((3, 4), np.float16)),
        "e": np.zeros((0, 3), np.int64),
    }
    write_arrays(folder / "0.npz", arrays)
    np.savez(folder / "1.npz", x=arrays["x"])
    np.savez_compressed(folder / "2.npz", **{**arrays, "y": np.array(["a", "bc"])})
    tensors = {
        name: adapter_file.Tensor(1, (2, 3), np.arange(24, dtype=np.uint8)) for name in ("first", "second", "a" * 90)
    }
    (folder / "0.adapter").write_bytes(b"".join(map(bytes, adapter_file.chunks(adapter_file.Adapter(1, 2, tensors)))))
    ortmulti.Tuning(
        settings={"intra_op_num_threads": 1, "thread_affinity": "node:0", "allow_spinning": False},
        objective="latency", devices=("cpu",), model={"name": "m", "shapes": "0", "graph": "1"},
        machine={"cpu": "c", "memory": 1}, gain={"ratio": 1.5, "low": 1.4, "high": 1.6},
    ).write(folder / "0.tuning")  # fmt: skip
    for number, document in enumerate((diagnosis.make_empty(), diagnosis.make_partial())):
        diagnosis.save(document, folder).rename(folder / f"{number}.diagnosis")
    (folder / "0.config").write_text(CONFIG)
    endings = {kind: kind for kind in TARGETS} | {"inputs": "npz"}
    return {kind: [path.read_bytes() for path in sorted(folder.glob(f"*.{end}"))] for kind, end in endings.items()}


def run(kinds: Sequence[str], seeds: dict[str, list[bytes]], path: Path, random: Random) -> str:
    """Make and read one changed file of these kinds; what became of it."""
    kind = random.choice(kinds)
    read, change = TARGETS[kind]
    content = random.choice(seeds[kind])
    if random.random() < 0.7:
        content = change(content, random)
    if random.random() < 0.4:
        content = changed_bytes(content, random)
    path.write_bytes(content)
    try:
        read(path)
    except (InvalidArgument, NoSuchFile) as error:
        return f"{kind}: {type(error).__name__}"
    return f"{kind}: read"


def main(target: str, *kinds: str) -> None:
    warnings.simplefilter("ignore")  # of NumPy and zipfile about odd headers
    ortmulti.get_available_providers()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        seeds = write_seeds(Path(name))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        cases.run(target, lambda random: run(kinds, seeds, Path(name) / "changed", random))
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB")


if __name__ == "__main__":
    main("files", "inputs", "inputs", "adapter", "tuning", "diagnosis")
