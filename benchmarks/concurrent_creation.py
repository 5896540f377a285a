"""Is it safe to create sessions at the same time? Many rounds of it, with nothing serialized.

Each round creates sessions of one of several small models on all the devices at once (`serialize="none"`), every few
rounds runs each of them and compares its outputs with a session's that was created alone, and closes them.

    python benchmarks/concurrent_creation.py --rounds 1000 --devices all
    python benchmarks/concurrent_creation.py --rounds 1000 --devices cuda:0 --sessions-per-device 4

Exit status 1 if any round failed or any output differed by more than a thousandth of the largest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ortmulti
from ortmulti.bench import models
from ortmulti.bench.measure import machine

TOLERANCE = 1e-3


def write_convolutions(path: Path) -> Path:
    """A small network of convolutions: what goes through cuDNN, and through the CPU's blocked layouts."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(6):
        channels = 3 if layer == 0 else 16
        weight = random.standard_normal((16, channels, 3, 3)).astype(np.float32) / np.float32(np.sqrt(channels * 9))
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("Conv", [f"x{layer}", f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"x{layer + 1}"]))
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("x6", TensorProto.FLOAT, ["n", 16, 32, 32])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def stress(
    rounds: int, devices: str | list[str], sessions_per_device: int, run_every: int, folder: Path
) -> dict[str, Any]:
    """Runs the rounds.

    Returns:
        rounds, sessions created, runs compared, and for each failure its round, model and message.
    """
    paths = [
        write_convolutions(folder / "convolutions.onnx"),
        models.make("matmul", folder, megabytes=3),
        models.make("tiny-kernels", folder),
        models.make("identity", folder),
    ]
    feeds = [models.sample_inputs(path) for path in paths]
    parsed = [str(device) for device in ortmulti.parse_devices(devices)]
    expected = []
    for path, feed in zip(paths, feeds, strict=True):
        with ortmulti.create_sessions(path, parsed[0]) as alone:
            expected.append(alone[0].run(None, feed))

    failures: list[dict[str, Any]] = []
    created = compared = identical = 0
    begin = time.perf_counter()
    for number in range(rounds):
        which = number % len(paths)
        try:
            with ortmulti.create_sessions(
                paths[which], parsed, sessions_per_device=sessions_per_device, serialize="none"
            ) as sessions:
                created += len(sessions)
                if number // len(paths) % run_every == 0:
                    for session in sessions:
                        for got, want in zip(session.run(None, feeds[which]), expected[which], strict=True):
                            compared += 1
                            identical += bool(np.array_equal(got, want))
                            if not np.allclose(got, want, rtol=0, atol=TOLERANCE * float(np.abs(want).max())):
                                raise AssertionError(f"{session.device}: outputs differ from a lone session's")
        except (ortmulti.Error, AssertionError) as error:
            failures.append({"round": number, "model": paths[which].name, "error": str(error)})
    return {
        "rounds": rounds,
        "devices": parsed,
        "sessions_per_device": sessions_per_device,
        "sessions": created,
        "outputs_compared": compared,
        "outputs_identical": identical,
        "failures": failures,
        "seconds": round(time.perf_counter() - begin, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--devices", default="all", help="all, cpu, cuda:0 or several with commas (default: all)")
    parser.add_argument("--sessions-per-device", type=int, default=1)
    parser.add_argument("--run-every", type=int, default=10, help="run and compare in every Nth round of each model")
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args()
    devices = args.devices if args.devices == "all" else args.devices.split(",")
    with tempfile.TemporaryDirectory() as folder:
        result = stress(args.rounds, devices, args.sessions_per_device, args.run_every, Path(folder))
    if args.json:
        args.json.write_text(json.dumps({**result, "machine": machine.describe()}, indent=1) + "\n", encoding="utf-8")
    print(
        f"{result['rounds']} rounds on {', '.join(result['devices'])}, {result['sessions_per_device']} sessions each, "
        f"{result['sessions']} sessions in {result['seconds']} s: {len(result['failures'])} failures; "
        f"{result['outputs_identical']} of {result['outputs_compared']} outputs identical to a lone session's"
    )
    for failure in result["failures"][:10]:
        print(f"  round {failure['round']}, {failure['model']}: {failure['error']}", file=sys.stderr)
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
