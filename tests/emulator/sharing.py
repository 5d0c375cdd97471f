"""Which libraries serve several architectures: those of kernels that use nothing which differs between them.

The prelude has instructions that only later architectures have. A kernel's library is the same for two architectures
if its preprocessed text is, and every definition that it uses of those which are not common to all architectures.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

_NAME = re.compile(r"\b[A-Za-z_]\w{3,}")
_DEFINED = re.compile(r"\b(?:void|int|unsigned|float|double|T)\s+(\w+)\s*\(")
REPRESENTATIVES = (75, 80, 90)
"""The architectures whose preludes are compared, beside the one that is compiled for."""


class Prelude(NamedTuple):
    """The preprocessed prelude of an architecture: lines common to all, and lines that not all of them have."""

    common: tuple[str, ...]
    varying: tuple[str, ...]
    varying_names: frozenset[str]
    """What some architecture's varying lines define."""

    def used_by(self, text: str) -> tuple[str, ...]:
        """Return the varying lines that ``text`` depends on, directly or by way of other such lines."""
        names = _names([text])
        # A common definition that uses a varying one would carry the difference into any kernel.
        if not self.varying_names.isdisjoint(_names(self.common)):
            return self.varying
        used: tuple[str, ...] = ()
        while True:
            wanted = names & self.varying_names
            # Lines that define nothing are the rest of longer definitions, of which ones is not worth finding out.
            now = tuple(line for line in self.varying if wanted and not _defines_others(line, wanted))
            if now == used:
                return used
            used = now
            names |= _names(used)


def prelude_of(architecture: int, preprocessed: Callable[[int], str]) -> Prelude:
    """Return the prelude of an architecture, given the preprocessed text for any."""
    texts = {number: preprocessed(number).splitlines() for number in {architecture, *REPRESENTATIVES}}
    common = frozenset.intersection(*(frozenset(lines) for lines in texts.values()))
    varying = [line for lines in texts.values() for line in lines if line not in common]
    return Prelude(
        tuple(dict.fromkeys(line for line in texts[architecture] if line in common)),
        tuple(line for line in texts[architecture] if line not in common),
        frozenset(name for line in varying for name in _DEFINED.findall(line)),
    )


def _defines_others(line: str, wanted: set[str]) -> bool:
    defined = set(_DEFINED.findall(line))
    return bool(defined) and defined.isdisjoint(wanted)


def _names(lines: Iterable[str]) -> set[str]:
    return {name for line in lines for name in _NAME.findall(line)}
