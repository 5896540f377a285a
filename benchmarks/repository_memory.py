"""How much memory does a repository on the CPU take beside its budget, and what gives it back?

The models of a folder take turns within a budget, under a few clients. Each setting of the C library's malloc has
processes of its own.

    python benchmarks/repository_memory.py FOLDER --budget 25MiB --json memory.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ortmulti
from ortmulti.bench.measure import machine
from ortmulti.bench.measure.rounds import alternating, measure_rounds, of_case
from ortmulti.create.sample_inputs import first_fit, growing_inputs

SETTINGS = ("", "MALLOC_MMAP_THRESHOLD_=1048576", "MALLOC_TRIM_THRESHOLD_=131072", "MALLOC_ARENA_MAX=2")
CLIENTS = 4
MEGABYTE = 10**6


def resident() -> int:
    """Bytes of memory that this process has in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """The most of it so far, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measure(paths: Sequence[Path], budget: str, evictions: int, batch: int) -> dict[str, Any]:
    """One process: the models wake and sleep until so many slept for others."""
    feeds = {}
    for path in paths:
        with ortmulti.InferenceSession(path, providers=["CPUExecutionProvider"]) as session:

            def run(feed: dict[str, Any], session: ortmulti.InferenceSession = session) -> dict[str, Any]:
                session.run(None, feed)
                return feed

            feeds[str(path)] = first_fit(growing_inputs(session.get_inputs(), batch), run)
    before = resident()
    with ortmulti.ModelRepository("cpu", host_memory=budget) as repository:
        for path in paths:
            repository.add(str(path), path)

        def slept() -> int:
            return sum(device.evictions for model in repository.stats().models.values() for device in model.devices)

        def ask(client: int) -> None:
            numbers = random.Random(client)
            while slept() < evictions:
                name = numbers.choice(list(feeds))
                repository.run(name, feeds[name])

        threads = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = resident()
        counted = repository.stats().devices[0].used
        for name in feeds:
            repository.unload(name)
        unloaded = resident()
    return {
        "before_mb": before / MEGABYTE,
        "peak_mb": max(peak(), after) / MEGABYTE,  # the kernel's two counters differ by some pages
        "idle_mb": after / MEGABYTE,
        "counted_mb": counted / MEGABYTE,
        "unloaded_mb": unloaded / MEGABYTE,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="has .onnx files, also in folders")
    parser.add_argument("--budget", default="25MiB", help="host_memory of the repository (default: 25MiB)")
    parser.add_argument("--evictions", type=int, default=200, help="default: 200")
    parser.add_argument("--batch", type=int, default=16, help="size of the inputs' batch dimension (default: 16)")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each setting (default: 3)")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    paths = sorted(args.folder.rglob("*.onnx"))
    if args.child:
        print(json.dumps(measure(paths, args.budget, args.evictions, args.batch)))
        return 0

    def child(setting: str, _: int) -> dict[str, Any]:
        given = [str(args.folder), "--budget", args.budget, "--evictions", str(args.evictions)]
        given += ["--batch", str(args.batch), "--child"]
        environment = {**os.environ, **dict([setting.split("=")] if setting else [])}
        done = subprocess.run(
            [sys.executable, __file__, *given],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    rounds = measure_rounds(SETTINGS, child, args.repeat, order=alternating)
    measured = {setting: of_case(rounds, setting) for setting in SETTINGS}
    for setting, found in measured.items():
        medians = {name: round(statistics.median(one[name] for one in found)) for name in found[0]}
        print(setting or "default", medians)
    if args.json:
        files = [{"name": path.name, "bytes": path.stat().st_size} for path in paths]
        document = {
            "budget": args.budget,
            "evictions": args.evictions,
            "clients": CLIENTS,
            "batch": args.batch,
            "models": files,
            "measured": measured,
            "machine": machine.describe(),
        }
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
