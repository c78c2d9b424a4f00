"""What is changed: every place of a source file that one of the operators below applies to.

A mutant replaces one expression or statement by another; the rest of the file keeps its text and its lines. Left out
is what no behaviour depends on (annotations, messages of errors, assertions, decorators, abstract bodies), and what a
CPU cannot run.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

COMPARED: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
# Functions and methods that take each other's place.
SWAPPED = [
    ("min", "max"),
    ("amin", "amax"),
    ("sum", "mean"),
    ("any", "all"),
    ("floor", "ceil"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("zeros_like", "ones_like"),
    ("zeros", "ones"),
    ("add_", "sub_"),
    ("mul_", "div_"),
    ("softmax", "log_softmax"),
    ("square", "abs"),
    ("issubset", "issuperset"),
    ("new_zeros", "new_ones"),
]
SWAPS = dict([*SWAPPED, *((b, a) for a, b in SWAPPED)])
# Methods that may be forgotten: x.clamp(min=1) becomes x.
FORGOTTEN = {
    *("clamp", "clamp_", "abs", "abs_", "sqrt", "square", "exp", "log", "log1p", "relu", "detach", "clone", "copy"),
    *("masked_fill", "masked_fill_", "mul", "mul_", "div", "div_", "add_", "sub_", "softmax", "log_softmax", "flip"),
    *("sort", "cumsum", "logical_not", "round", "neg", "strip", "lower"),
}
# Methods whose result could be kept from falling below 0 by mistake.
ACCUMULATED = {"add_", "sub_", "addcmul_", "lerp_", "copy_"}
# As FORGOTTEN, with plain functions: max(a, b) becomes a, and then b.
UNWRAPPED = {"abs", "round", "sorted", "reversed", "max", "min", "ceil", "sqrt", "log", "exp"}
COMMUTE = {
    "min",
    "max",
    "minimum",
    "maximum",
    "isclose",
    "allclose",
    "equal",
    "zip",
    "product",
    "gcd",
    "Union",
    "outer",
}
# Their values change no result on a CPU, or only where something that cannot be is asserted.
IDLE_KEYWORDS = {"strict", "device", "dtype", "memory_format", "non_blocking", "encoding", "indent", "help", "repr"}
# Operators that nearly always end in an exception: one in four of their mutants is enough.
CRUDE = {"return None", "swap arguments"}
NO_MESSAGES = ("Error", "unknown", "TypeVar", "cast", "dataclass", "notice", "warn")


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    function: str  # its qualified name; empty for the module
    operator: str
    start: int  # bytes of the source that are replaced
    stop: int
    text: str
    before: str
    line: int
    lines: tuple[int, int]  # of the statement, or of the head of a compound one
    statement: str
    number: int = 0  # of those that look the same

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.stop :]

    @property
    def key(self) -> str:
        """The same wherever the function stands."""
        words = (self.function, self.statement, self.operator, self.before, self.text, str(self.number))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} [{self.operator}] {self.before}  ->  {self.text}"


def find_mutants(root: Path, file: str, gpu_only: frozenset[str] = frozenset()) -> list[Mutant]:
    """All mutants of a file that compile to something else, in the order of their places. `gpu_only`: names of
    functions and classes that are left out.
    """
    source = (root / file).read_bytes()
    finder = _Finder(file, source, gpu_only, _literals(root / "src"))
    found: list[Mutant] = []
    texts: set[bytes] = set()
    original = compile(source, file, "exec", dont_inherit=True)
    alike: Counter[str] = Counter()
    for mutant in finder.find():
        changed = mutant.apply(source)
        if changed in texts or _same_code(original, compile(changed, file, "exec", dont_inherit=True)):
            continue
        texts.add(changed)
        found.append(replace(mutant, number=alike[mutant.key]))
        alike[mutant.key] += 1
    return found


def sample(mutants: list[Mutant], count: int, seed: int, *, of_a_line: int = 2) -> list[Mutant]:
    """So many of a file's mutants: those whose hash with the seed is least, at most two of a line."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}\0{mutant.key}".encode()).hexdigest()

    mutants = [m for m in mutants if m.operator not in CRUDE or rank(m)[-1] in "048c"]

    taken: Counter[int] = Counter()
    chosen: list[Mutant] = []
    for mutant in sorted(mutants, key=rank):
        if len(chosen) < count and taken[mutant.line] < of_a_line:
            taken[mutant.line] += 1
            chosen.append(mutant)
    return sorted(chosen, key=lambda mutant: (mutant.start, mutant.text))


def _same_code(one: object, other: object) -> bool:
    """Whether two code objects do the same, wherever their lines are."""
    kind = type(find_mutants.__code__)
    if not (isinstance(one, kind) and isinstance(other, kind)):
        return type(one) is type(other) and repr(one) == repr(other)
    fields = ("co_code", "co_names", "co_varnames", "co_freevars", "co_flags", "co_argcount", "co_exceptiontable")
    if any(getattr(one, field) != getattr(other, field) for field in fields):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(map(_same_code, one.co_consts, other.co_consts))


_LITERALS: dict[Path, dict[str, list[str]]] = {}


def _literals(src: Path) -> dict[str, list[str]]:
    """The values of every `Name = Literal[...]` of the package."""
    if src not in _LITERALS:
        found: dict[str, list[str]] = {}
        for path in sorted(src.rglob("*.py")):
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found.setdefault(node.targets[0].id, _literal(node.value))
        _LITERALS[src] = {name: values for name, values in found.items() if values}
    return _LITERALS[src]


def _literal(node: ast.expr | None) -> list[str]:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return []


def _name(node: ast.expr) -> str:
    """The last word of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Finder:
    def __init__(self, file: str, source: bytes, gpu_only: frozenset[str], literals: dict[str, list[str]]) -> None:
        self.file, self.source, self.gpu_only, self.literals = file, source, gpu_only, literals
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.function: list[str] = []
        self.statement: ast.stmt | None = None
        self.assigned: list[set[str]] = [set()]  # names of the functions around that have a value

    def find(self) -> Iterator[Mutant]:
        yield from self._body(ast.parse(self.source).body)

    # ------------------------------------------------------------------ places

    def _place(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _mutant(self, operator: str, node: ast.AST, text: str) -> Mutant:
        start, stop = self._place(node)
        statement = self.statement
        assert statement is not None and statement.end_lineno is not None
        last = statement.end_lineno
        body = getattr(statement, "body", None)
        if isinstance(body, list) and body:
            last = max(statement.lineno, body[0].lineno - 1)
        head = " ".join(ast.unparse(statement).split("\n")[0].split()) if body else ast.unparse(statement)
        return Mutant(
            self.file,
            ".".join(self.function),
            operator,
            start,
            stop,
            text,
            " ".join(self.source[start:stop].decode().split()),
            node.lineno,  # type: ignore[attr-defined]
            (statement.lineno, last),
            head,
        )

    def _expr(self, operator: str, node: ast.AST, new: ast.expr) -> Mutant:
        return self._mutant(operator, node, f"({ast.unparse(ast.fix_missing_locations(new))})")

    # ------------------------------------------------------------------ statements

    def _body(self, body: list[ast.stmt]) -> Iterator[Mutant]:
        for statement in body:
            outer, self.statement = self.statement, statement
            yield from self._statement(statement)
            self.statement = outer
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    self.assigned[-1].add(node.id)

    def _statement(self, node: ast.stmt) -> Iterator[Mutant]:
        match node:
            case ast.FunctionDef():
                yield from self._defined(node)
            case ast.ClassDef():
                if node.name not in self.gpu_only and not any(_name(base) == "Protocol" for base in node.bases):
                    self.function.append(node.name)
                    self.assigned.append(set())
                    yield from self._body(node.body)
                    self.assigned.pop()
                    self.function.pop()
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass() | ast.Global() | ast.Nonlocal():
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr():
                if isinstance(node.value, ast.Call):
                    yield self._mutant("remove a call", node, "pass")
                    if _name(node.value.func) in ACCUMULATED:
                        bounded = ast.Call(ast.Attribute(node.value, "clamp_"), [ast.Constant(0)], [])
                        yield self._expr("clamp", node, bounded)
                yield from self._within(node.value)
            case ast.Assign() | ast.AnnAssign():
                yield from self._assignment(node)
            case ast.AugAssign():
                yield self._mutant("remove an assignment", node, "pass")
                if type(node.op) in ARITHMETIC:
                    other = copy.deepcopy(node)
                    other.op = ARITHMETIC[type(node.op)]()
                    yield self._mutant("arithmetic", node, ast.unparse(other))
                yield from self._within(node.value)
            case ast.Return():
                if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
                    yield self._mutant("return None", node, "return None")
                    yield from self._within(node.value)
            case ast.Raise():
                if node.exc is not None:
                    yield self._mutant("do not raise", node, "pass")
            case ast.Continue():
                yield self._mutant("loops", node, "break")
                yield self._mutant("loops", node, "pass")
            case ast.Break():
                yield self._mutant("loops", node, "continue")
            case ast.If() | ast.While():
                if "cuda" in ast.unparse(node.test) or "passes.available" in ast.unparse(node.test):
                    yield from self._body(node.orelse)
                    return
                if "TYPE_CHECKING" in ast.unparse(node.test):
                    return
                yield from self._condition(node.test, loops=isinstance(node, ast.While))
                yield from self._within(node.test)
                yield from self._body(node.body)
                yield from self._body(node.orelse)
            case ast.For():
                yield from self._within(node.iter)
                yield from self._body(node.body)
                yield from self._body(node.orelse)
            case ast.With():
                for item in node.items:
                    yield from self._within(item.context_expr)
                yield from self._body(node.body)
            case ast.Try():
                yield from self._body(node.body)
                for handler in node.handlers:
                    if not isinstance(handler.body[0], ast.Raise):
                        self.statement = handler.body[0]
                        yield self._mutant("do not catch", handler.body[0], "raise")
                    yield from self._body(handler.body)
                yield from self._body(node.orelse)
                yield from self._body(node.finalbody)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        yield from self._within(child)

    def _defined(self, node: ast.FunctionDef) -> Iterator[Mutant]:
        name = ".".join([*self.function, node.name])
        decorators = {_name(d) for d in node.decorator_list}
        if name in self.gpu_only or node.name in self.gpu_only or decorators & {"abstractmethod", "overload"}:
            return
        self.function.append(node.name)
        arguments = [*node.args.posonlyargs, *node.args.args]
        with_default = [*zip(arguments[len(arguments) - len(node.args.defaults) :], node.args.defaults, strict=True)]
        keywords = [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        for argument, default in [*with_default, *keywords]:
            yield from self._default(argument.annotation, default)
            yield from self._within(default)
        self.assigned.append({a.arg for a in [*arguments, *node.args.kwonlyargs]})
        yield from self._body(node.body)
        self.assigned.pop()
        self.function.pop()

    def _default(self, annotation: ast.expr | None, default: ast.expr) -> Iterator[Mutant]:
        """Another of the words that an argument or a field may have."""
        if annotation is None or not isinstance(default, ast.Constant) or not isinstance(default.value, str):
            return
        for part in ast.walk(annotation):
            words = _literal(part) if isinstance(part, ast.Subscript) else []
            if isinstance(part, ast.Name):
                words = self.literals.get(part.id, [])
            for word in words:
                if word != default.value:
                    yield self._mutant("default", default, repr(word))
                    return

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> Iterator[Mutant]:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(targets[0], ast.Name) and targets[0].id in ("__all__", "T", "C"):
            return
        if isinstance(node.value, ast.Subscript) and _name(node.value.value) in ("Literal", "Callable", "dict"):
            return  # the name of a type
        if not self.function and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.BitOr):
            return
        if isinstance(node, ast.AnnAssign):
            yield from self._default(node.annotation, node.value)
        first = targets[0]
        again = isinstance(first, ast.Name) and first.id in self.assigned[-1]
        there = isinstance(first, ast.Attribute) and self.function[-1:] not in (["__init__"], ["__post_init__"])
        if again or there or isinstance(first, ast.Subscript):
            yield self._mutant("remove an assignment", node, "pass")
        if isinstance(node.value, ast.List | ast.Tuple) and isinstance(first, ast.Name):
            yield from self._shorter(node.value)
        yield from self._within(node.value)

    # ------------------------------------------------------------------ expressions

    def _within(self, node: ast.AST) -> Iterator[Mutant]:
        """Of an expression and all of its parts."""
        if isinstance(node, ast.JoinedStr):
            return  # a message
        match node:
            case ast.Compare():
                yield from self._compared(node)
            case ast.BinOp():
                yield from self._arithmetic(node)
            case ast.BoolOp():
                other = copy.deepcopy(node)
                other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                yield self._expr("and/or", node, other)
                for i in range(len(node.values)):
                    fewer = [value for j, value in enumerate(node.values) if j != i]
                    new = fewer[0] if len(fewer) == 1 else ast.BoolOp(node.op, fewer)
                    yield self._expr("drop a condition", node, new)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
                yield self._expr("drop not or minus", node, node.operand)
            case ast.Constant():
                yield from self._constant(node)
                return
            case ast.IfExp():
                yield from self._condition(node.test)
            case ast.Call():
                yield from self._call(node)
            case ast.Subscript():
                yield from self._slice(node)
            case ast.Dict():
                if len(node.keys) > 1 and self.function:
                    for i in (0, len(node.keys) - 1):
                        new_dict = copy.deepcopy(node)
                        del new_dict.keys[i], new_dict.values[i]
                        yield self._expr("drop an element", node, new_dict)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for generator in node.generators:
                    for condition in generator.ifs:
                        yield from self._condition(condition)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                if child.arg not in IDLE_KEYWORDS:
                    yield from self._within(child.value)
            elif isinstance(node, ast.Call) and _name(node.func).endswith(NO_MESSAGES):
                continue
            else:
                yield from self._within(child)

    def _condition(self, test: ast.expr, *, loops: bool = False) -> Iterator[Mutant]:
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield self._expr("negate", test, ast.UnaryOp(ast.Not(), test))
        if not loops:
            yield self._mutant("always", test, "True")
        yield self._mutant("never", test, "False")

    def _compared(self, node: ast.Compare) -> Iterator[Mutant]:
        for i, operator in enumerate(node.ops):
            for other in COMPARED[type(operator)]:
                new = copy.deepcopy(node)
                new.ops[i] = other()
                yield self._expr("compare", node, new)

    def _arithmetic(self, node: ast.BinOp) -> Iterator[Mutant]:
        def is_text(part: ast.expr) -> bool:
            return isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))

        if type(node.op) not in ARITHMETIC or is_text(node.left) or is_text(node.right):
            return
        yield self._expr("arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))
        yield self._expr("drop an operand", node, node.left)
        if not isinstance(node.left, ast.Constant):
            yield self._expr("drop an operand", node, node.right)

    def _constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self._mutant("constant", node, str(not value))
        elif isinstance(value, int):
            yield self._mutant("constant", node, f"({value + 1})")
            yield self._mutant("constant", node, f"({value - 1})")
        elif isinstance(value, float):
            yield self._mutant("constant", node, f"({value * 2 if value else 1.0!r})")
            yield self._mutant("constant", node, f"({value + 1!r})")

    def _call(self, node: ast.Call) -> Iterator[Mutant]:
        name = _name(node.func)
        if name.endswith(NO_MESSAGES) or name in ("isinstance", "field", "get_args"):
            return
        if name in SWAPS:
            new = copy.deepcopy(node)
            if isinstance(new.func, ast.Attribute):
                new.func.attr = SWAPS[name]
                yield self._expr("swap functions", node, new)
            elif isinstance(new.func, ast.Name) and SWAPS[name] in ("min", "max", "any", "all"):
                new.func.id = SWAPS[name]
                yield self._expr("swap functions", node, new)
        library = isinstance(node.func, ast.Attribute) and _name(node.func.value) in ("torch", "np", "math", "F")
        if isinstance(node.func, ast.Attribute) and name in FORGOTTEN and not library:
            yield self._expr("drop a call", node, node.func.value)
        if name in UNWRAPPED and node.args and (library or isinstance(node.func, ast.Name)):
            for argument in node.args[:2]:
                if not isinstance(argument, ast.Starred | ast.GeneratorExp):
                    yield self._expr("drop a call", node, argument)
        for i, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in IDLE_KEYWORDS:
                fewer = copy.deepcopy(node)
                del fewer.keywords[i]
                yield self._expr("drop an argument", node, fewer)
        two = node.args[:2]
        if len(two) == 2 and name not in COMMUTE and not any(isinstance(a, ast.Starred) for a in two):
            swapped = copy.deepcopy(node)
            swapped.args[:2] = swapped.args[1::-1]
            if ast.unparse(two[0]) != ast.unparse(two[1]):
                yield self._expr("swap arguments", node, swapped)
        for argument in node.args:
            if isinstance(argument, ast.List | ast.Tuple):
                yield from self._shorter(argument)

    def _shorter(self, node: ast.List | ast.Tuple) -> Iterator[Mutant]:
        if len(node.elts) > 1:
            for i in {0, len(node.elts) - 1}:
                new = copy.deepcopy(node)
                del new.elts[i]
                yield self._expr("drop an element", node, new)

    def _slice(self, node: ast.Subscript) -> Iterator[Mutant]:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not isinstance(node.ctx, ast.Load):
            return
        for i, part in enumerate(parts):
            for bound in ("lower", "upper", "step"):
                if isinstance(part, ast.Slice) and getattr(part, bound) is not None:
                    new = copy.deepcopy(node)
                    there = new.slice.elts[i] if isinstance(new.slice, ast.Tuple) else new.slice
                    setattr(there, bound, None)
                    yield self._expr("slice", node, new)
