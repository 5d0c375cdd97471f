"""``python -m bench``: parse the command line, set the number of threads, run."""

import importlib.util
import sys
from collections.abc import Sequence

# Nothing here may import NumPy, dualsoft or a peer: they read their number of threads when they are imported.
from bench.options import parse
from bench.threads import set_threads

EXTRA = 'pip install -e ".[bench]"'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = parse(arguments)
    if options.readme is not None:
        from bench.readme import fill

        return fill(options.readme)
    needed = ["rich", "matplotlib"] if options.plot else ["rich"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print(f"the benchmark needs {' and '.join(missing)}, which the extra `bench` brings: {EXTRA}", file=sys.stderr)
        return 2
    if options.backend == "cuda":
        from bench.device_session import run_on_card

        return run_on_card(options)
    set_threads(options.threads)

    from bench.session import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
