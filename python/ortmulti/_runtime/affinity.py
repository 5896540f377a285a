"""The form in which ONNX Runtime takes the processors of an intra-op pool's threads."""

from __future__ import annotations

import re

from ortmulti.errors import InvalidArgument

__all__ = ["check"]

# "1,2;3-4": logical processors from 1 on, or ranges of them, for each thread.
_RANGE = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_FORM = re.compile(rf"{_RANGE}(?:,{_RANGE})*(?:;{_RANGE}(?:,{_RANGE})*)*")


def check(name: str, affinities: str, intra_op_num_threads: int | None = None) -> None:
    """Checks that threads can have these processors; ONNX Runtime looks at them when it makes the pool.

    Args:
        name: What they are the value of.
        affinities: ``"1,2;3-4"``: the processors of each thread but the calling one, counted from 1.
        intra_op_num_threads: The threads of the pool, the calling one included; default: not known yet.

    Raises:
        InvalidArgument: Another form, a processor 0, a range that falls, or not one group for each thread.
    """
    if not _FORM.fullmatch(affinities):
        raise InvalidArgument(f"{name} is of the form '1,2;3-4': the processors of each thread, not {affinities!r}")
    groups = affinities.split(";")
    for part in (part for group in groups for part in group.split(",")):
        first, _, last = part.partition("-")
        if not 1 <= int(first) <= int(last or first):
            raise InvalidArgument(f"{name} has processors from 1 on, and ranges that rise; {part!r} is neither")
    threads = len(groups) + 1
    if intra_op_num_threads not in (None, threads):
        raise InvalidArgument(
            f"{name} is for {threads - 1} threads besides the calling one: intra_op_num_threads is {threads} with it, "
            f"not {intra_op_num_threads}"
        )
