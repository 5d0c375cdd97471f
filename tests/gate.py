"""The compile gate: which variants are compiled for which architectures, and the table of what came out.

``python tests/gate.py [ARCHITECTURES [WORD ...]]`` prints a line for each variant whose name contains one of the words,
and ``--kernels`` before them a line for each kernel. ARCHITECTURES is what ``DUALSOFT_TEST_ARCHITECTURES`` may be:

``80,90``
    All variants for each.
``80+90``
    Each variant for one of them, each kernel for both.
``all``
    All variants for each of the seven: some 25 minutes of one core.
``shared``
    ``75,80+86+89+90,100+120``: all seven, and those share the variants for which the compiler makes the same PTX of
    them, so that every variant goes once each way that there is from text to PTX. Less than half the time.
"""

import functools
import importlib
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import cubin
from cubin import Code

from dualsoft.backends.nvrtc import Variant

Group = tuple[int, ...]

EVERY_TIME = "80+90+120"
NAMED = {"all": ",".join(map(str, cubin.ARCHITECTURES)), "shared": "75,80+86+89+90,100+120"}
COLUMNS = (
    "LDG.128",
    "STG.128",
    "LDG",
    "STG",
    "MUFU",
    "FFMA",
    "DFMA",
    "SHFL",
    "BAR",
    "HMMA",
    "DMMA",
    "LDSM",
    "LDGSTS",
    "CALL",
)


def variants() -> list[Variant]:
    """Every variant that the host code can launch: of each ``dualsoft.backends.cuda*`` that lists some."""
    package = importlib.import_module("dualsoft.backends")
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name.startswith("cuda")]
    modules = [importlib.import_module(f"{package.__name__}.{name}") for name in names]
    tables: list[Callable[[], Iterator[Variant]]] = [m.variants for m in modules if hasattr(m, "variants")]
    return [variant for table in tables for variant in table()]


# ---------------------------------------------------------------- which for which


def groups(asked: str) -> tuple[Group, ...]:
    """The architectures, those together that share the variants.

    Raises
    ------
    ValueError
        When it cannot be read, or names others than the seven, or one twice.
    """
    text = NAMED.get(asked, asked or EVERY_TIME)
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    is_text = re.fullmatch(r"\d+([,+]\d+)*", text) is not None
    if not is_text or set(numbers) - set(cubin.ARCHITECTURES) or len(set(numbers)) != len(numbers):
        raise ValueError(
            f"architectures {asked!r}: expected {', '.join(NAMED)} or some of {cubin.ARCHITECTURES}, each once, "
            "with + between those that share the variants and commas between others"
        )
    return tuple(tuple(map(int, group.split("+"))) for group in text.split(","))


def by_kernel(listed: Iterable[Variant]) -> dict[str, list[Variant]]:
    found: dict[str, list[Variant]] = {}
    for variant in listed:
        found.setdefault(variant.kernel, []).append(variant)
    return found


F64_PRODUCTS = {80: 4, 90: 1, 100: 4}
"""Architectures on which tiles of float64 are multiplied by tensor cores, each by a text of its own: how many
instructions a product of 16 x 8 x 8 takes."""
F64_TILES = {"attention": 2, "attention_gradient": 2, "gradient_queries": 2, "gradient_bias": 1}
"""Products of tiles in the text of a kernel. A step of each is four of 16 x 8 x 8."""


def has_f64_tiles(variant: Variant) -> bool:
    macros = dict(variant.defines)
    return macros.get("DS_C") == "f64" and macros.get("DS_FEW") == 0


def f64_products(variant: Variant, architecture: int) -> int:
    """How many instructions of tensor cores in float64 are due."""
    return 4 * F64_TILES[variant.kernel] * F64_PRODUCTS.get(architecture, 0) if has_f64_tiles(variant) else 0


def parts(variant: Variant, group: Group) -> list[Group]:
    """The architectures of a group, those together that may share a variant."""
    own = [number for number in group if has_f64_tiles(variant) and number in F64_PRODUCTS]
    others = tuple(number for number in group if number not in own)
    return [*((number,) for number in own), *([others] if others else [])]


def shared_out(listed: Iterable[Variant], group: Group) -> dict[int, list[Variant]]:
    """Each variant for one architecture of a part that it compiles for, and kernels for all, by their first variant.

    A variant goes to where the fewest before it had the values of its macros, which spreads each of them evenly;
    the variants of other kernels have no say.
    """
    shares: dict[int, list[Variant]] = {number: [] for number in group}
    had: Counter[tuple[object, ...]] = Counter()
    for kernel, every in by_kernel(listed).items():
        for variant in every:
            traits = [(kernel,), *((kernel, *define) for define in variant.defines)]
            for part in parts(variant, group):
                able = [number for number in part if number >= variant.oldest]
                if able:
                    home = min(able, key=lambda number: sum(had[number, *trait] for trait in traits))
                    shares[home].append(variant)
                    had.update((home, *trait) for trait in traits)
        for number in group:
            if not had[number, kernel]:
                shares[number] += [variant for variant in every if number >= variant.oldest][:1]
    return shares


def plan(asked: str) -> dict[int, list[Variant]]:
    """What is compiled, by architecture."""
    listed = variants()
    return {number: share for group in groups(asked) for number, share in shared_out(listed, group).items()}


@functools.cache
def codes(asked: str, architecture: int) -> tuple[Code, ...]:
    """What is compiled for an architecture, and read."""
    share = plan(asked)[architecture]
    return tuple(cubin.read(share, cubin.compile_all(share, architecture), architecture))


# ---------------------------------------------------------------- the table


def of_variants(found: Iterable[Code]) -> list[tuple[str, ...]]:
    """A header and a row for each code."""
    rows: list[tuple[str, ...]] = [
        ("kernel", "sm", "registers", "spilled", "shared", "warps", "instructions", *COLUMNS)
    ]
    for code in found:
        numbers = (code.registers, code.spilled, code.usage["SHARED"], code.resident_warps, len(code.operations))
        counted = (*numbers, *(code.counts[name] for name in COLUMNS))
        rows.append((code.variant.name, str(code.architecture), *map(str, counted)))
    return rows


def of_kernels(found: Iterable[Code]) -> list[tuple[str, ...]]:
    """A header and a row for each kernel and architecture: how many variants, their least and greatest numbers."""
    header, *rows = of_variants(found)

    def key(row: tuple[str, ...]) -> tuple[str, int]:
        return row[0].partition("[")[0], int(row[1])

    table = [(header[0], header[1], "variants", *header[2:])]
    for (kernel, number), some in groupby(sorted(rows, key=key), key=key):
        columns = [sorted(map(int, column)) for column in list(zip(*some, strict=True))[2:]]
        ends = (str(c[0]) if c[0] == c[-1] else f"{c[0]}-{c[-1]}" for c in columns)
        table.append((kernel, str(number), str(len(columns[0])), *ends))
    return table


def show(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns side by side."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = (number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True))
        print(f"{name.ljust(widths[0])}  {'  '.join(cells)}")


def main(arguments: Sequence[str]) -> int:
    is_short = "--kernels" in arguments
    asked, *words = [argument for argument in arguments if argument != "--kernels"] or [""]
    try:
        chosen = plan(asked)
    except ValueError as error:
        print(f"{error}\n\n{__doc__}")
        return 1
    if (reason := cubin.why_not()) is not None:
        print(reason)
        return 1
    found: list[Code] = []
    for number, share in chosen.items():
        named = [variant for variant in share if any(word in variant.name for word in words or [""])]
        found += cubin.read(named, cubin.compile_all(named, number), number)
    print(f"NVRTC {'.'.join(map(str, cubin.nvrtc().version))}, {len(found)} variants")
    show(of_kernels(found) if is_short else of_variants(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
