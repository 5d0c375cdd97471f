"""Inline PTX turned into calls of C++ functions named after the opcode, so that the emulator runs the text a GPU runs.

``asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(a), ... : "r"(p) : "memory");``
becomes ``ptx_ldmatrix_sync_aligned_m8n8_x4_shared_b16(line, emulator::out_r(a), ..., emulator::in_r(p));`` with the
operands in the order of the template, not of the constraints: an operand in the wrong place goes wrong here as it would
on a card, and an opcode that the emulator (or the architecture it stands for) lacks is a compile error. What a compiler
for GPUs would accept in silence and miscompile now and then is an error here: see `_check_operands` and
`_check_volatile`.

The text is what the preprocessor leaves: macros are expanded, and ``# line "file"`` markers say where a line is from.
"""

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .errors import TranslationError

_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'  # strings and characters first: what looks like a keyword inside them is not one
    r"|'(?:[^'\\\n]|\\[^\n]{1,10}?)'"
    r"|//[^\n]*|/\*.*?\*/"
    r"|\b(?P<keyword>asm|__asm__|__global__)\b",
    re.DOTALL,
)
_MARKER = re.compile(r'^[ \t]*#[ \t]*(?:line[ \t]+)?(\d+)[ \t]+"([^"\n]*)"[^\n]*\n', re.MULTILINE)
_VOLATILE = re.compile(r"(?:asm|__asm__)\s+(?:volatile|__volatile__)\b")
_OPERAND = re.compile(r'\s*((?:"[^"]*"\s*)+)(\(.*\))\s*', re.DOTALL)
_INSTRUCTION = re.compile(r"(?P<opcode>[a-z][\w.:]*)\s*(?P<operands>[^;]*);\s*", re.DOTALL)
_OPERAND_WORD = re.compile(r"%\d+(?:\s*\+\s*\d+)?|-?\b(?:0x[0-9a-fA-F]+|\d+)\b|[A-Za-z_%]\w*")
_LITERAL = re.compile(r"-?(?:0x[0-9a-fA-F]+|\d+)")
_NUMBERED = re.compile(r"%(\d+)(?:\s*\+\s*(\d+))?")
_SEPARATORS = re.compile(r"[.:]+")

_LETTERS = "rhlfdn"

_WITHOUT_DESTINATION = (
    *("cp.async", "st.", "red.", "bar.sync", "bar.arrive", "bar.warp.sync", "barrier.sync", "barrier.cta.sync"),
    *("fence", "membar", "prefetch", "discard", "nanosleep", "griddepcontrol", "trap", "exit"),
)
_TOUCHES_MEMORY = (
    *("cp.async", "ldmatrix", "stmatrix", "ld.", "st.", "red.", "atom."),
    *("bar.", "barrier.", "fence", "membar"),
)
_READS_CONSTANTS = ("ld.global.nc", "ld.const", "ld.param")
_TALKS_TO_OTHER_LANES = ("shfl.", "vote.", "match.", "redux.", "activemask", "prefetch", "griddepcontrol", "nanosleep")


class Operand(NamedTuple):
    """One operand of an asm statement: ``"+f"(sum)`` is ``Operand("+", "f", "(sum)")``."""

    access: str
    letter: str
    expression: str


@dataclass(frozen=True)
class Statement:
    """The parts of an asm statement, and where it is written."""

    place: str
    is_volatile: bool
    template: str
    outputs: tuple[Operand, ...]
    inputs: tuple[Operand, ...]
    clobbers: str

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.outputs + self.inputs


class Use(NamedTuple):
    """One operand as the template uses it: a number of the operand list or a literal, written to or read.

    ``offset`` is what an address such as ``[%1+16]`` adds.
    """

    operand: int | str
    is_destination: bool
    offset: str = ""


class Kernel(NamedTuple):
    """A ``__global__`` function: its name, and the arguments of its ``__launch_bounds__`` ("" if it has none)."""

    name: str
    launch_bounds: str


class Translation(NamedTuple):
    """C++ text that calls the emulator, and the kernels in it."""

    text: str
    kernels: tuple[Kernel, ...]


class _Places:
    """From an offset in preprocessed text to the file and line it came from."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offsets = [0]
        self._origins: list[tuple[int, str]] = [(1, "source")]
        for marker in _MARKER.finditer(text):
            self._offsets.append(marker.end())
            self._origins.append((int(marker[1]), marker[2]))

    def at(self, offset: int) -> tuple[str, int]:
        index = bisect.bisect_right(self._offsets, offset) - 1
        line, file = self._origins[index]
        return file, line + self._text.count("\n", self._offsets[index], offset)


def translate(text: str) -> Translation:
    """Return preprocessed CUDA text as C++ for the emulator.

    Raises
    ------
    TranslationError
        Naming file and line of each asm statement that cannot be understood or that breaks a rule of inline PTX.
    """
    places = _Places(text)
    pieces: list[str] = []
    kernels: list[Kernel] = []
    problems: list[str] = []
    done = 0
    for token in _keywords(text):
        start = token.start()
        if start < done:
            continue
        file, line = places.at(start)
        if token["keyword"] == "__global__":
            kernel, end, replacement = _kernel_head(text, start, f"{file}:{line}")
            kernels.append(kernel)
        else:
            end = _closing(text, text.index("(", start)) + 1
            try:
                replacement = call_of(parse_statement(text[start:end], f"{file}:{line}"))
            except TranslationError as error:
                problems.append(str(error))
                replacement = ""
        pieces.append(text[done:start])
        pieces.append(replacement)
        if "\n" in text[start:end]:
            end_file, end_line = places.at(end)
            pieces.append(f'\n# {end_line} "{end_file}"\n')
        done = end
    if problems:
        raise TranslationError("\n".join(problems))
    pieces.append(text[done:])
    return Translation("".join(pieces), tuple(kernels))


def _keywords(text: str) -> Iterator[re.Match[str]]:
    return (token for token in _TOKEN.finditer(text) if token["keyword"])


def _kernel_head(text: str, start: int, place: str) -> tuple[Kernel, int, str]:
    """Read from ``__global__`` to the parameter list; launch bounds are kept, to be checked at each launch."""
    bounds = ""
    head = start + len("__global__")
    launch = re.compile(r"\s*(?:void\s+)?__launch_bounds__\s*(?=\()").match(text, head)
    if launch:
        closing = _closing(text, launch.end())
        bounds = text[launch.end() + 1 : closing].strip()
        head = closing + 1
    name = re.compile(r"\s*(?:void\s+)?(\w+)\s*(?=\()").match(text, head)
    if not name:
        raise TranslationError(f'{place}: kernels begin extern "C" __global__ void __launch_bounds__(N) name(')
    return Kernel(name[1], bounds), name.end(), f"void {name[1]}"


def parse_statement(text: str, place: str) -> Statement:
    """Take an asm statement, from ``asm`` to its closing parenthesis, apart.

    Raises
    ------
    TranslationError
        If an operand is not ``"constraint"(expression)`` or has a constraint that PTX has no register for.
    """
    text = _MARKER.sub("", text)
    opening = text.index("(")
    sections = _split(text[opening + 1 : _closing(text, opening)], ":")
    sections += [""] * (4 - len(sections))
    template = re.sub(r"\\[nt]", " ", _string(sections[0])).strip()
    return Statement(
        place,
        bool(_VOLATILE.match(text)),
        template,
        tuple(_operands(sections[1], place, is_output=True)),
        tuple(_operands(sections[2], place, is_output=False)),
        _string(sections[3]),
    )


def call_of(statement: Statement) -> str:
    """Return the call of the function named after the statement's opcode.

    Raises
    ------
    TranslationError
        If the template is not one instruction, or the statement breaks a rule of inline PTX.
    """
    place, template = statement.place, statement.template
    if template.startswith("{") and template.endswith("}"):
        template = template[1:-1].strip()
    instruction = _INSTRUCTION.fullmatch(template)
    if not instruction:
        raise TranslationError(f'{place}: "{statement.template}" is not one PTX instruction that ends in ";"')
    opcode = instruction["opcode"]
    uses = list(_uses(opcode, instruction["operands"], place))
    _check_operands(statement, uses)
    _check_volatile(statement, opcode)
    arguments = ["__builtin_LINE()", *(_argument(statement, use) for use in uses)]
    return f"ptx_{_SEPARATORS.sub('_', opcode)}({', '.join(arguments)})"


def _uses(opcode: str, operands: str, place: str) -> Iterator[Use]:
    groups = _split(operands, ",") if operands.strip() else []
    has_destination = not opcode.startswith(_WITHOUT_DESTINATION)
    for number, group in enumerate(groups):
        for word in _OPERAND_WORD.findall(group):
            if word == "_":
                continue
            # An address in brackets is read even where it says where to write.
            is_destination = has_destination and number == 0 and "[" not in group
            numbered = _NUMBERED.fullmatch(word)
            if numbered:
                yield Use(int(numbered[1]), is_destination, numbered[2] or "")
            elif _LITERAL.fullmatch(word):
                yield Use(word, is_destination)
            else:
                raise TranslationError(f"{place}: {opcode}: operand {word!r} is neither %N nor a number")


def _check_operands(statement: Statement, uses: list[Use]) -> None:
    place, operands, outputs = statement.place, statement.operands, len(statement.outputs)
    for use in uses:
        if isinstance(use.operand, str):
            continue
        if use.operand >= len(operands):
            raise TranslationError(f"{place}: %{use.operand} has no operand")
        if use.is_destination and use.operand >= outputs:
            raise TranslationError(f"{place}: %{use.operand} is written by the instruction but is an input")
        if not use.is_destination and use.operand < outputs and operands[use.operand].access != "+":
            raise TranslationError(f'{place}: %{use.operand} is read, but its constraint "=" says it is only written')
    unused = set(range(len(operands))) - {use.operand for use in uses}
    if unused:
        names = ", ".join(f"%{number}" for number in sorted(unused))
        raise TranslationError(f"{place}: the template does not use {names}")
    for number in range(outputs):
        if not any(use.operand == number and use.is_destination for use in uses):
            raise TranslationError(f"{place}: %{number} is an output, but the instruction does not write it")


def _check_volatile(statement: Statement, opcode: str) -> None:
    touches_memory = opcode.startswith(_TOUCHES_MEMORY) and not opcode.startswith(_READS_CONSTANTS)
    if touches_memory and '"memory"' not in f'"{statement.clobbers}"':
        raise TranslationError(f'{statement.place}: {opcode} touches memory and needs a "memory" clobber')
    if (touches_memory or opcode.startswith(_TALKS_TO_OTHER_LANES)) and not statement.is_volatile:
        raise TranslationError(f"{statement.place}: {opcode} needs volatile, or the compiler may drop or move it")


def _argument(statement: Statement, use: Use) -> str:
    if isinstance(use.operand, str):
        return use.operand
    operand = statement.operands[use.operand]
    offset = f" + {use.offset}" if use.offset else ""
    return f"emulator::{'out' if use.is_destination else 'in'}_{operand.letter}{operand.expression}{offset}"


def _operands(section: str, place: str, *, is_output: bool) -> Iterator[Operand]:
    for text in _split(section, ","):
        if not text.strip():
            continue
        operand = _OPERAND.fullmatch(text)
        if not operand:
            raise TranslationError(f'{place}: operand {text.strip()!r} is not "constraint"(expression)')
        constraint, expression = _string(operand[1]), operand[2]
        access, letter = ("", constraint) if not is_output else (constraint[:1], constraint[1:].removeprefix("&"))
        if len(letter) != 1 or letter not in _LETTERS or (is_output and access not in ("=", "+")):
            role = "an output" if is_output else "an input"
            raise TranslationError(f'{place}: {role} with the constraint "{constraint}", which PTX has not')
        yield Operand(access, letter, expression)


def _string(section: str) -> str:
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', section))


def _split(text: str, separator: str) -> list[str]:
    """Split at ``separator`` outside of quotes and brackets; ``::`` of a qualified name is no separator."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        character = text[at]
        if character in "\"'":
            at = _end_of_quote(text, at)
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _closing(text: str, opening: int) -> int:
    depth, at = 0, opening
    while at < len(text):
        character = text[at]
        if character in "\"'":
            at = _end_of_quote(text, at)
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    raise TranslationError("a parenthesis of an asm statement is not closed")


def _end_of_quote(text: str, opening: int) -> int:
    at = opening + 1
    while text[at] != text[opening]:
        at += 2 if text[at] == "\\" else 1
    return at
