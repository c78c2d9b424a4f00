"""Methods by name.

A function that returns a `Method` becomes a method with `@method`: its name is the method's (caf_ewc -> caf-ewc), its
keywords are the hyper-parameters that `--set` takes, and their annotations say which values they may have (float and
`Strength`, int, bool, or words). A built-in method declares all that is its own in the same place:

    @method(family="regularization", cite="Kirkpatrick et al., PNAS 2017", defaults={"lambda_sp": 1e4})
    def ewc(lambda_sp: Strength) -> Method:
        ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, overload

from kenyon.errors import ConfigError, shown, unknown
from kenyon.methods.base import Method
from kenyon.methods.penalties.strength import Strength
from kenyon.utils.user_code import import_file

Definition = Literal["published", "paper", "authors"]
# In the order of tables and pictures; within a family, methods stand in the order in which they are declared.
FAMILIES = (
    *("unprotected", "regularization", "distillation", "sparsity", "active forgetting", "replay"),
    *("independent", "collaborative", "joint", "reference"),
)
UNKNOWN = Method(multi=True)  # stands for a method that cannot be built yet: it may have several learners


@dataclass(frozen=True)
class MethodSpec:
    """A method by name, and what is known of it before its hyper-parameters are."""

    name: str
    summary: str
    build: Callable[..., Method]
    family: str = ""  # one of FAMILIES; users' own methods have none
    cite: str = ""
    defaults: Mapping[str, float] = field(default_factory=dict, hash=False)  # strengths for data without tuned ones
    # What "paper" and "authors" set, where a method has such forms; a text says why there is none.
    definitions: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict, hash=False)
    color: str | None = None  # in pictures, #rrggbb: one color a family, distinct also in grey; CAF stands out
    hue: str | None = None  # on the report page, which has a light and a dark shade of it

    @property
    def hyperparameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.build).parameters)

    @property
    def settings(self) -> tuple[str, ...]:
        """The hyper-parameters and, where the method has several definitions, `definition`."""
        return (*self.hyperparameters, *(("definition",) if self.definitions else ()))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.build)
        except NameError:  # annotations for type checkers alone: all settings are numbers
            return {}

    @property
    def required(self) -> tuple[str, ...]:
        """Hyper-parameters without a default: benchmarks give their values."""
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(p.name for p in parameters if p.default is inspect.Parameter.empty)

    @property
    def strengths(self) -> tuple[str, ...]:
        """Hyper-parameters annotated as `Strength`: their values may differ between runs that train together."""
        return tuple(name for name in self.hyperparameters if self._hints.get(name) == Strength)

    @property
    def kinds(self) -> dict[str, type]:
        """The type of each setting: str, bool, int or, without an annotation, float."""
        kinds = {name: _kind(hint) for name, hint in self._hints.items() if name in self.hyperparameters}
        return kinds | ({"definition": str} if self.definitions else {})

    @property
    def multi(self) -> bool:
        """True for several learners, also where that depends on unknown values."""
        return self.example.multi

    @property
    def learners(self) -> int:
        """The default number of learners."""
        return self.example.learners

    @property
    def apart(self) -> bool:
        """True if learners are independent."""
        return self.example.apart

    @property
    def schedule(self) -> str:
        return self.example.schedule

    @property
    def keeps_samples(self) -> bool:
        """True if the method keeps samples of earlier tasks."""
        return self.example.replay is not None

    @property
    def example(self) -> Method:
        """The method at made-up values, for properties that do not depend on them."""
        try:
            return self({name: _made_up(self._hints.get(name)) for name in self.required})
        except Exception:  # a user's function may refuse made-up values
            if not self.required:
                raise
            return UNKNOWN

    def resolve(self, given: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return hyper-parameters: `usual` values, then those that `definition` sets, then all others given.

        Results do not know of definitions. What one sets to a value that holds anyway is left out, so that equal
        configurations compare equal.
        """
        given, usual = dict(given), usual or {}
        definition = given.pop("definition", "published") if self.definitions else "published"
        default = {name: p.default for name, p in inspect.signature(self.build).parameters.items()}
        defined = self._defined(definition).items()
        changed = {name: value for name, value in defined if name in usual or value != default.get(name)}
        return {**usual, **changed, **given}

    def _defined(self, definition: str) -> Mapping[str, Any]:
        if definition == "published":
            return {}
        if definition not in get_args(Definition):
            raise ConfigError(f"definition must be {', '.join(get_args(Definition))}, not {shown(definition)}.")
        found = self.definitions.get(definition, "it is not known")
        if isinstance(found, str):
            raise ConfigError(f"{self.name} has no definition {definition}: {found}. Choose another definition.")
        return found

    def __call__(self, hyper: Mapping[str, Any] | None = None) -> Method:
        """Build the method."""
        given = self.resolve(hyper or {})
        for name in given:
            if name not in self.hyperparameters:
                raise unknown(f"hyper-parameter of {self.name}", name, self.hyperparameters or ("none",))
        missing = [name for name in self.required if name not in given]
        if missing:
            given_with = " ".join(f"--set {name}=VALUE" for name in missing)
            raise ConfigError(f"{self.name} needs {', '.join(missing)}: give {given_with}.")
        made = self.build(**given)
        if not isinstance(made, Method):
            raise ConfigError(
                f"The function of the method {self.name} gives {shown(made)}. It must return a Method: "
                "return Method(importance, penalties)."
            )
        return made


METHODS: dict[str, MethodSpec] = {}
Build = Callable[..., Method]


@overload
def method(build: Build) -> Build: ...
@overload
def method(*, name: str | None = None, **declared: Any) -> Callable[[Build], Build]: ...
def method(build: Build | None = None, *, name: str | None = None, **declared: Any) -> Any:
    """Register a function that returns a `Method`, under its own name or the given one.

    `declared` are fields of `MethodSpec`: family, cite, defaults, definitions, color and hue. Names of built-in
    methods cannot be used again: results know methods by name alone.
    """
    if build is None:
        return partial(method, name=name, **declared)
    name = name or build.__name__.replace("_", "-")
    if name in METHODS and METHODS[name].build.__module__ != build.__module__:
        raise ConfigError(f"There is a method {name} already. Give the function {build.__name__} another name.")
    METHODS[name] = MethodSpec(name, next(iter((inspect.getdoc(build) or "").splitlines()), ""), build, **declared)
    return build


def find_method(name: str) -> MethodSpec:
    """Return the method of that name, or raise an error that suggests similar ones."""
    try:
        return METHODS[name]
    except (KeyError, TypeError):
        told = unknown("method", name, METHODS)
        raise ConfigError(f"{told} One of your own goes by its file: --method mine.py.") from None


def load_method_file(path: Path) -> list[str]:
    """Import a user's file and return the names of the methods in it."""
    module = import_file(path, "method")
    names = [name for name, spec in METHODS.items() if spec.build.__module__ == module.__name__]
    if not names:
        raise ConfigError(f"{path} must define at least one function with @method; it defines none.")
    return names


def place(name: str) -> tuple[int, int, str]:
    """Return the sort key of a method in tables and pictures: by family, and last, by name, those without one."""
    spec = METHODS.get(name)
    if spec is None or spec.family not in FAMILIES:
        return len(FAMILIES), 0, name
    return FAMILIES.index(spec.family), list(METHODS).index(name), name


def colors() -> dict[str, str]:
    """Return the colors of methods in pictures, of those that have one."""
    return {name: spec.color for name, spec in METHODS.items() if spec.color is not None}


def hue_of(name: str) -> str | None:
    """Return the color of a method on the report page, if it has one of its own."""
    return METHODS[name].hue if name in METHODS else None


def switches() -> frozenset[str]:
    """Return the settings that definitions set."""
    every = (values for spec in METHODS.values() for values in spec.definitions.values())
    return frozenset(name for values in every if not isinstance(values, str) for name in values)


def _first(hint: Any) -> Any:
    """Return the first alternative of a union: any setting may also be None."""
    return get_args(hint)[0] if get_origin(hint) in (Union, UnionType) else hint


def _kind(hint: Any) -> type:
    first = _first(hint)
    if get_origin(first) is Literal:
        return str
    return first if first in (str, bool, int) else float


def _made_up(hint: Any) -> Any:
    """Return a value that few methods refuse: the first word, False, 1, or a strength of 0."""
    first = _first(hint)
    if get_origin(first) is Literal:
        return get_args(first)[0]
    return {str: "", bool: False, int: 1}.get(first, 0.0)
