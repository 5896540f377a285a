"""A candidate's process: it makes the model ready, and measures a block whenever it is asked."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ortmulti.errors import Error
from ortmulti.tools.tune import fresh, outputs
from ortmulti.tools.tune.target import Subject


def main() -> int:
    """Reads a spec and then requests from the standard input, a line each, and writes answers to the file descriptor
    that the process's argument names; ends with the input.

    The spec is that of `Subject`, with "measure", "block_seconds", "clients" and "outputs", where the outputs of the
    warm-up are written. To measure "creation" or "memory" is all that the process does then; for "latency" and
    "throughput" every request is "block".
    """
    with os.fdopen(int(sys.argv[1]), "w") as replies:

        def reply(**content: Any) -> None:
            replies.write(json.dumps(content) + "\n")
            replies.flush()

        spec = json.loads(sys.stdin.readline())
        try:
            if spec["measure"] in ("creation", "memory"):
                reply(**(fresh.first_answer if spec["measure"] == "creation" else fresh.memory)(spec))
                return 0
            with Subject(spec) as subject:
                outputs.save(subject.warm_up(), Path(spec["outputs"]))
                reply(ready=True)
                for _ in sys.stdin:
                    if spec["measure"] == "latency":
                        cost = subject.latency(spec["block_seconds"])
                    else:
                        cost = subject.throughput(spec["block_seconds"], spec["clients"])
                    reply(cost=cost)
        except Error as error:
            reply(error=str(error))
            return 1
        except Exception as error:
            reply(error=f"{type(error).__name__}: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
