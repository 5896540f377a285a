"""Facts about this machine, as the kernel's files have them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def first_processor(root: Path = Path("/")) -> dict[str, str]:
    """Return what the kernel says about the first processor. ``proc`` lies in ``root``, as for the other functions."""
    try:
        # The first processor's lines; the others' would take the kernel milliseconds to write.
        with (root / "proc/cpuinfo").open("rb") as file:
            text = file.read(16384).decode(errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r"(?m)^(\w[\w ]*?)\s*:\s*(.*)$", text.partition("\n\n")[0]))


def cpu_model(root: Path = Path("/")) -> str | None:
    """Return the processors' model; None if unknown."""
    found = first_processor(root)
    # AArch64 has no name in there, only the maker's and the part's numbers.
    return (found.get("model name") or found.get("CPU part") or "").strip() or None


def describe_memory(root: Path = Path("/")) -> dict[str, int | None]:
    """Return the main memory in bytes: ``total``, the machine's; ``cgroup_limit``, this process's, None without one."""
    match = re.search(r"(?m)^MemTotal:\s+(\d+) kB", read(root / "proc/meminfo") or "")
    limits = [number(text) for text in cgroup_files(root, "memory", "memory.max", "memory.limit_in_bytes")]
    # Version 1 writes "no limit" as a number near 2**63.
    real = [limit for limit in limits if limit is not None and limit < 1 << 60]
    return {"total": int(match[1]) * 1024 if match else None, "cgroup_limit": min(real, default=None)}


def resident_memory(root: Path = Path("/")) -> int:
    """Return the bytes of main memory that this process has."""
    match = re.search(r"(?m)^VmRSS:\s+(\d+) kB", read(root / "proc/self/status") or "")
    return int(match[1]) * 1024 if match else 0


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes of main memory that this process can still get, by the kernel and the cgroup."""
    match = re.search(r"(?m)^MemAvailable:\s+(\d+) kB", read(root / "proc/meminfo") or "")
    available = int(match[1]) * 1024 if match else 0
    limit = describe_memory(root)["cgroup_limit"]
    return available if limit is None else min(available, max(0, limit - resident_memory(root)))


def cgroup_files(root: Path, controller: str, unified: str, *legacy: str) -> Iterator[str]:
    """Yield the contents of a control file in this process's group and in each above it, version 2 or 1.

    Several legacy files of one group are joined by a space.
    """
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:
            names: tuple[str, ...] = (unified,)
            mounts = [root / "sys/fs/cgroup"]
        elif controller in controllers.split(","):
            names = legacy
            mounts = [root / "sys/fs/cgroup" / folder for folder in dict.fromkeys((controllers, controller))]
        else:
            continue
        parts = [part for part in group.split("/") if part]
        for mount in mounts:
            # Inside a container the groups above may be invisible, or this one may appear as the root.
            for depth in range(len(parts), -1, -1):
                texts = [read(mount.joinpath(*parts[:depth], name)) for name in names]
                if all(text is not None for text in texts):
                    yield " ".join(text for text in texts if text is not None)


def read_list(path: Path) -> set[int]:
    """Return a list of numbers as the kernel writes it: "0-3,8"; empty where there is none."""
    found = re.finditer(r"(\d+)(?:-(\d+))?", read(path) or "")
    return {each for match in found for each in range(int(match[1]), int(match[2] or match[1]) + 1)}


def read(path: Path) -> str | None:
    """Return a file's text without white space around it; None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number(text: str) -> int | None:
    """Return the number that a text is; None for others."""
    try:
        return int(text)
    except ValueError:
        return None
