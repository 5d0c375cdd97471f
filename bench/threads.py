"""The same number of threads for everyone: set before anything that reads it is imported."""

import os

VARIABLES = (
    "DUALSOFT_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    # The size of XLA's pool.
    "NPROC",
)


def available() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(threads: int) -> None:
    """Give every library ``threads`` threads, by its environment variable and, on Linux, by processor affinity.

    Parameters
    ----------
    threads : int
        At least 1.
    """
    for name in VARIABLES:
        os.environ[name] = str(threads)
    # JAX on a machine with an accelerator would be measured on the accelerator.
    os.environ["JAX_PLATFORMS"] = "cpu"
    # torch.compile keeps a pool of compiling processes, which would disturb what is timed.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if hasattr(os, "sched_setaffinity") and threads < available():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
