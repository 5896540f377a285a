"""The arrows between the parts of the code: each part knows only those before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CPP = Path(__file__).parents[2] / "cpp"
# From bottom to top. The bindings come last and may include all.
CPP_ROOMS = ("base", "onnx", "cuda", "ort", "weights", "create", "pool")


@pytest.mark.parametrize("room", CPP_ROOMS)
def test_a_cpp_room_includes_only_earlier_rooms(room: str) -> None:
    earlier = CPP_ROOMS[: CPP_ROOMS.index(room) + 1]
    files = [file for file in (CPP / "core" / room).rglob("*") if file.suffix in {".cpp", ".hpp"}]
    assert files
    wrong = [
        f"{file.relative_to(CPP)} includes {include}"
        for file in files
        for include in re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE)
        if not include.startswith(tuple(f"core/{name}/" for name in earlier))
    ]
    assert not wrong


def test_every_folder_of_the_core_is_a_room() -> None:
    assert {folder.name for folder in (CPP / "core").iterdir() if folder.is_dir()} == set(CPP_ROOMS)
