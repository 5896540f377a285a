"""Ctrl-C at each place where Python looks for signals."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest


def interrupted_at_each_place(call: Callable[[], object]) -> Iterator[KeyboardInterrupt]:
    """Interrupt the call wherever Python looks for signals: as a function begins, and after one of C."""
    for number in itertools.count(1):
        left = [None] * number

        def interrupt(_: FrameType, event: str, __: Any, left: list[None] = left) -> None:
            if event in ("call", "c_return") and left:
                left.pop()
                if not left:
                    raise KeyboardInterrupt

        caught: BaseException | None = None
        sys.setprofile(interrupt)
        try:
            call()
        except BaseException as error:
            caught = error
        finally:
            left.clear()
            sys.setprofile(None)
        if not isinstance(caught, KeyboardInterrupt):
            return
        yield caught


def interrupted_in(code: CodeType, call: Callable[[], object]) -> None:
    """Interrupt the call as it begins the function with this code for the first time."""

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is code:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        sys.setprofile(None)
