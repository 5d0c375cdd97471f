"""A mixture of Gaussians fitted to handwritten digits, with log-sum-exp in the hot loop: SciPy's, then dualsoft's.

The data are the 1797 digits of scikit-learn (8 x 8 pixels), and copies of them shifted by up to ``--shift`` pixels up,
down, left and right, which is how a mixture learns that a moved 3 is still a 3. They are projected on their first
``--features`` principal components. Expectation-maximisation then alternates two steps, for points x (n of them) and
components k with weight w, mean mu and diagonal covariance s:

- E: ``log r[n, k] = log w[k] + log N(x[n]; mu[k], s[k]) - logsumexp over k``, the responsibilities, whose normaliser
  summed over n is the log-likelihood of the data;
- M: weights, means and variances are the averages of the points, weighted by r.

Densities underflow in 30 dimensions, so the E step has to work with logarithms: one logsumexp and one softmax of the
(n, k) matrix of joint log-densities in every iteration. Both runs start from the same means. They must reach the same
log-likelihood, to 1e-10 of it; the times are printed, of everything and of the two functions alone. The purity says
what the components are good for: the share of the digits (the unmoved ones) that carry the commonest label of their
component.

Run it: ``python examples/mixture.py``, or with ``--help``.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special  # type: ignore[import-untyped]
import terminal
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from sklearn.decomposition import PCA  # type: ignore[import-untyped]

import dualsoft

Array = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Reduction = Callable[..., Any]

TOLERANCE = 1e-10
"""How far apart the two log-likelihoods may be, as a share."""
LEAST_VARIANCE = 1e-2
"""Added to every variance (pixels go from 0 to 16), so that no component collapses to a point."""


class Functions(NamedTuple):
    """The two functions of the hot loop, from one library."""

    name: str
    logsumexp: Reduction
    softmax: Reduction


class Mixture(NamedTuple):
    """Parameters: weights (k,), means (k, features), variances (k, features)."""

    weights: Array
    means: Array
    variances: Array


class Fit(NamedTuple):
    """What came out, and how long it took, in seconds."""

    log_likelihood: float
    """Of all points, in nats."""
    component: Integers
    """The likeliest component of every point."""
    total: float
    reductions: float


def moved_digits(shift: int) -> tuple[Array, Integers]:
    """Return the digits with all their shifts, the unmoved ones first, as (n, 64), and the labels of those."""
    digits = load_digits()
    images = digits.images
    steps = [(0, 0)] + [(dy, dx) for dy in range(-shift, shift + 1) for dx in range(-shift, shift + 1) if dy or dx]
    padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift)))
    height, width = images.shape[1:]
    moved = [padded[:, shift + dy : shift + dy + height, shift + dx : shift + dx + width] for dy, dx in steps]
    return np.concatenate(moved).reshape(-1, height * width), digits.target


def log_joint(points: Array, mixture: Mixture) -> Array:
    """Return ``log w[k] + log N(x[n]; mu[k], s[k])`` as (n, k)."""
    precisions = 1 / mixture.variances
    # (x - mu)^2 / s multiplied out: three small products instead of an (n, k, features) array.
    distances = (
        np.square(points) @ precisions.T
        - 2 * points @ (mixture.means * precisions).T
        + (np.square(mixture.means) * precisions).sum(axis=1)
    )
    log_volumes = np.log(2 * np.pi * mixture.variances).sum(axis=1)
    joint: Array = np.log(mixture.weights) - 0.5 * (distances + log_volumes)
    return joint


def maximised(points: Array, responsibilities: Array) -> Mixture:
    """Return the mixture that the responsibilities (n, k) make likeliest."""
    # A component that lost all its points keeps a trace of weight, and its logarithm stays finite.
    counts = responsibilities.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = responsibilities.T @ points / counts[:, np.newaxis]
    squares = responsibilities.T @ np.square(points) / counts[:, np.newaxis]
    return Mixture(counts / len(points), means, np.maximum(squares - np.square(means), 0) + LEAST_VARIANCE)


def start(points: Array, components: int, seed: int) -> Mixture:
    """Return equal weights, the overall variance, and points drawn at random as means."""
    chosen = np.random.default_rng(seed).choice(len(points), components, replace=False)
    variances = np.tile(points.var(axis=0) + LEAST_VARIANCE, (components, 1))
    return Mixture(np.full(components, 1 / components), points[chosen], variances)


def fit(points: Array, mixture: Mixture, iterations: int, functions: Functions) -> Fit:
    """Run expectation-maximisation and time it."""
    begin, reductions = time.perf_counter(), 0.0
    log_likelihood, joint = -np.inf, log_joint(points, mixture)
    for _ in range(iterations):
        before = time.perf_counter()
        log_likelihood = float(functions.logsumexp(joint, axis=1).sum())
        responsibilities = functions.softmax(joint, axis=1)
        reductions += time.perf_counter() - before
        mixture = maximised(points, responsibilities)
        joint = log_joint(points, mixture)
    return Fit(log_likelihood, joint.argmax(axis=1), time.perf_counter() - begin, reductions)


def purity(component: Integers, labels: Integers) -> float:
    """Return the share of points that carry the commonest label of their component."""
    agreeing = sum(np.bincount(labels[component == k]).max() for k in np.unique(component))
    return float(agreeing / len(labels))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit with both libraries, compare, and print."""
    given = _parser().parse_args(arguments)
    images, labels = moved_digits(given.shift)
    points = PCA(given.features, svd_solver="full").fit_transform(images)
    print(f"{len(labels)} digits, {len(points)} points with shifts, {given.features} features")
    print(f"{given.components} components, {given.iterations} iterations")
    begin = start(points, given.components, given.seed)
    libraries = (
        Functions("SciPy", scipy.special.logsumexp, scipy.special.softmax),
        Functions("dualsoft", dualsoft.logsumexp, dualsoft.softmax),
    )
    print(f"\n{'':<10}{'log-likelihood':>22}{'purity':>9}{'total':>10}{'logsumexp, softmax':>21}")
    fits = []
    for functions in libraries:
        result = fit(points, begin, given.iterations, functions)
        fits.append(result)
        share = purity(result.component[: len(labels)], labels)
        print(
            f"{functions.name:<10}{result.log_likelihood:>22.6f}{share:>9.1%}{result.total:>8.2f} s"
            f"{result.reductions:>19.3f} s"
        )
    theirs, ours = fits
    faster, alone = theirs.total / ours.total, theirs.reductions / ours.reductions
    print(f"\nwith dualsoft {faster:.2f}x as fast; the two functions alone {alone:.2f}x")
    difference = abs(ours.log_likelihood - theirs.log_likelihood) / abs(theirs.log_likelihood)
    if not difference <= TOLERANCE:
        raise RuntimeError(
            f"the log-likelihoods differ by {difference:.3g} of their size, more than {TOLERANCE:g}: "
            f"SciPy {theirs.log_likelihood!r}, dualsoft {ours.log_likelihood!r}"
        )
    print(f"the log-likelihoods agree to {difference:.1e} of their size")
    return 0


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--components", type=_count, default=100, help="Gaussians (default 100: ten a digit)")
    parser.add_argument("--iterations", type=_count, default=30, help="of expectation-maximisation (default 30)")
    parser.add_argument(
        "--features", type=_count, default=30, help="principal components kept, at most 64 (default 30)"
    )
    parser.add_argument("--shift", type=int, default=1, help="pixels that copies are moved by (default 1: 9 copies)")
    parser.add_argument("--seed", type=int, default=0, help="of the starting means (default 0)")
    return parser


if __name__ == "__main__":
    sys.exit(terminal.run(main))
