"""What the reports claim, and when we count a claim as holding. The statements are in our words."""

from __future__ import annotations

from dataclasses import dataclass

from .reports import CONTENTION, INITIALIZATION, PYTORCH, THREADING, Source


@dataclass(frozen=True)
class Claim:
    """What a report claims.

    Attributes:
        id: by which results and documents name it.
        source: whose.
        text: the claim, with its figures.
        rule: when it counts as holding here.
    """

    id: str
    source: Source
    text: str
    rule: str


def half_of(published: float) -> float:
    """The least that counts as a published gain ("2.0x") showing here as well: half of it (1.5x)."""
    return 1 + (published - 1) / 2


GIL_IS_HELD = Claim(
    "gil-held",
    INITIALIZATION,
    "Creating an InferenceSession holds the GIL.",
    "other Python threads stand still for at least half of the creation",
)
GIL_BY_MODEL_SIZE = Claim(
    "gil-by-size",
    INITIALIZATION,
    "The larger the model, the longer the GIL is held.",
    "the largest model holds other threads up at least twice as long as the smallest",
)
ROOT_CAUSE = Claim(
    "root-cause",
    INITIALIZATION,
    "Threads fail because the GIL is held while a session is created.",
    "the GIL is what threads wait for in at least half of the creation",
)
SLOW_FIRST_SESSION = Claim(
    "slow-first-session",
    INITIALIZATION,
    "One session's init is slow because of cuDNN's algorithm search, graph optimization and CUDA's start.",
    "these are at least half of the time until the first answer, the start of Python left out",
)
USE_PROCESSES = Claim(
    "use-processes",
    INITIALIZATION,
    "The primary recommendation is processes.",
    "no other way is faster here",
)
SMALL_THREADS = Claim(
    "small-threads",
    INITIALIZATION,
    "Threads work well for a small model (84.1%).",
    "(S-1)/(N-1) of threads is at least half of that, 0.42",
)
SMALL_PROCESSES = Claim(
    "small-processes",
    INITIALIZATION,
    "For a small model processes are slower than threads, because of their own start.",
    "processes take longer than threads",
)
LARGE_THREADS = Claim(
    "large-threads",
    INITIALIZATION,
    "For a large model threads are effectively serial (15.1%).",
    "(S-1)/(N-1) of threads is at most twice that, 0.30",
)
LARGE_PROCESSES = Claim(
    "large-processes",
    INITIALIZATION,
    "For a large model processes are much faster than threads (4.38 s against 7.48 s).",
    f"threads take at least {half_of(7.48 / 4.38):.2f} times as long, half of the published gain",
)
NEAR_LINEAR = Claim(
    "near-linear",
    INITIALIZATION,
    "Processes scale nearly linearly with the number of GPUs.",
    "S of processes is at least 0.8 N (the report's own is 0.62 N)",
)
HEURISTIC_CREATION = Claim(
    "heuristic-creation",
    INITIALIZATION,
    "cudnn_conv_algo_search=HEURISTIC makes the creation of a session 2.0x as fast.",
    "creation is at least 1.5x as fast, half of the published gain",
)
HEURISTIC_FIRST_RUN = Claim(
    "heuristic-first-run",
    INITIALIZATION,
    "HEURISTIC makes the init of models with many convolutions 2-10x as fast; here: creation and first run together.",
    "creation and first run together are at least 1.5x as fast",
)
NO_OPTIMIZATION = Claim(
    "no-optimization",
    INITIALIZATION,
    "Without graph optimization creation is 2.5x as fast.",
    "creation is at least 1.75x as fast, half of the published gain",
)
PRE_OPTIMIZED = Claim(
    "pre-optimized",
    INITIALIZATION,
    "A model that was optimized before loads 4.3x as fast.",
    "creation is at least 2.65x as fast, half of the published gain",
)
ZERO_COPY = Claim(
    "zero-copy",
    INITIALIZATION,
    "multiprocessing.shared_memory transfers batches to worker processes without copies, faster than pickling.",
    "an answer for the largest batch takes less time than by pickling",
)
CONTENTION_OF_THREADS = Claim(
    "contention",
    CONTENTION,
    "Threads of one process slow each other down when each launches short kernels on a GPU of its own (4x on 10 GPUs).",
    "a run takes at least 1.5 times as long on all GPUs as on one",
)
PROCESSES_HAVE_NONE = Claim(
    "contention-processes",
    CONTENTION,
    "Processes, one a GPU, do not slow each other down.",
    "a run takes at most 1.1 times as long on all GPUs as on one",
)
SLOWER_THAN_PYTORCH = Claim(
    "slower-than-pytorch",
    PYTORCH,
    "ONNX Runtime at its default settings is slower than PyTorch (150 against 200 inferences a second, ResNet-50).",
    "at equal precision and batch 1 from host arrays, answers a second are less than PyTorch's",
)
TUNED_NOT_EQUAL = Claim(
    "tuned-not-equal",
    PYTORCH,
    "Tuning session and provider options does not quite reach PyTorch.",
    "the fastest way of ortmulti takes longer than PyTorch's fastest, batch 1",
)
NO_GRAPHS = Claim(
    "no-cuda-graphs",
    PYTORCH,
    "CUDA graphs are not directly possible in ONNX Runtime.",
    "no way with a CUDA graph gives PyTorch's outputs",
)
THREADS_PER_CORE = Claim(
    "threads-per-core",
    THREADING,
    "By default a session has one intra-op thread for each physical core, the calling one included.",
    "it starts one thread less than there are physical cores",
)
DEFAULT_IS_BOUND = Claim(
    "default-affinity",
    THREADING,
    "By default these threads are bound to cores; with an explicit number of threads they are not.",
    "as said, by the threads' affinity masks",
)
SPINNING = Claim(
    "spinning",
    THREADING,
    "Spinning makes inference faster and takes more processor time.",
    "without it a run takes longer, and less processor time",
)
SPIN_BACKOFF = Claim(
    "spin-backoff",
    THREADING,
    "spin_duration_us=1000 with spin_backoff_max=8 performs best across models and numbers of threads.",
    "no other spinning setting is faster by more than 2% in any of the measured models",
)
PARALLEL_BRANCHES = Claim(
    "parallel-branches",
    THREADING,
    "ORT_PARALLEL is usually faster for models with many branches.",
    "a run of a model with 16 branches is faster",
)
PARALLEL_CHAIN = Claim(
    "parallel-chain",
    THREADING,
    "ORT_PARALLEL can make models without many branches slower.",
    "a run of ResNet-50 is slower",
)
AFFINITY = Claim(
    "affinity",
    THREADING,
    "It is normally best to set no affinity and to leave threads to the operating system.",
    "as many threads without affinity take at most 2% longer than with it",
)
ONE_NODE = Claim(
    "one-node",
    THREADING,
    "Threads bound to one NUMA node are nearly 20 percent faster than on two.",
    "they are at least 1.1x as fast",
)
GLOBAL_POOL = Claim(
    "global-pool",
    THREADING,
    "A global pool of threads prevents contention among the sessions' own pools.",
    "several sessions that run at once answer more with it",
)
