"""Options that several commands share, and those of an experiment, made from its declaration."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kenyon.experiments.spec import CONFIG, OPTIONS, SHORTCUTS, Experiment, Option


def path(text: str | Path) -> Path:
    """The type of all options that are paths. (Python takes an empty one for the current folder.)"""
    if not str(text):
        raise typer.BadParameter("It is empty. Give a path; the present folder is '.'.")
    return Path(text)


Json = Annotated[bool, typer.Option("--json", help="Machine-readable: the last line of output is one JSON object.")]
DataDir = Annotated[Path | None, typer.Option(*OPTIONS["data"].flags, parser=path, help=OPTIONS["data"].help)]
Device = Annotated[str, typer.Option(*OPTIONS["device"].flags, help=OPTIONS["device"].help)]
Results = Annotated[Path, typer.Argument(parser=path, help="A results folder, or a result.json in it.")]

_DECLARED: dict[str, Option] = {option.name or name: option for name, option in OPTIONS.items()}
_DECLARED |= {"config": CONFIG, **SHORTCUTS}
# Defaults that the command line shows; options without one are not given.
_DEFAULTS = {"device": Experiment.device, "out": Experiment.out, "fwt": Experiment.fwt}
_DEFAULTS |= {"keep_every_task": False, "deterministic": Experiment.deterministic}


def experiment_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command, which takes **options, these options of an experiment.

    `names` is their order, and may contain the command's own parameters; its other parameters come first.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = {name: p for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        order = [*(name for name in own if name not in names), *names]
        parameters = [own.get(name) or _parameter(name) for name in order]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    option = _DECLARED[name]
    default = _DEFAULTS.get(name)
    more: dict[str, Any] = {"help": option.help}
    if option.shown is not None:
        more["show_default"] = option.shown
    if option.type is Path:
        more["parser"] = path
    declared = typer.Option(*option.flags, **more) if option.flags else typer.Argument(**more)
    kind: Any = option.type if default is not None else option.type | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )
