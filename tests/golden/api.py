"""The public interface as a list, to be held against later versions.

    python -m tests.golden.api --record     # write api.json
    python -m tests.golden.api --check      # what a user of then would miss; exit status 1 if anything

Recorded are: importable names with their signatures, every import in the documentation and the examples, commands
with options and defaults, methods, benchmarks, settings with their values, and the keys of JSON output. More is
always welcome. What goes on purpose stands in `deprecated.json`, with the reason.

Only `command_tree` and `PARTS` know where things are inside.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import kenyon
from tests.golden.workbench import command, last_json

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILE, DEPRECATED = HERE / "api.json", HERE / "deprecated.json"
RESULTS = HERE / "v0_1" / "results"
# Modules whose public names are part of the interface: what `import kenyon` gives, and what the pages speak of.
PARTS = (
    "analysis", "errors", "experiments", "forces", "importance", "methods", "metrics", "nets", "penalties",
    "predictions", "reproduce", "rl", "rl.policy", "strengths", "streams", "sweep", "theory", "tools", "tracked",
    "train",
)  # fmt: skip
ITSELF = "(...)"  # of a class: its constructor

Api = dict[str, Any]

# ------------------------------------------------------------------------------------------------------------- Python


def public_names(module: ModuleType) -> list[str]:
    """`__all__`, or what is defined there."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
        and getattr(value, "__name__", name) == name
    ]
    return sorted(own)


def signature_of(value: Any) -> str | None:
    """Names, kinds and defaults, without annotations."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    if all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found.parameters.values()) and inspect.isclass(value):
        return None  # what Python gives a class without a constructor, which differs between versions
    plain = [p.replace(annotation=p.empty, default=default_of(p.default)) for p in found.parameters.values()]
    return str(inspect.Signature(plain))


class Spoken:
    """A default that is no literal."""

    def __repr__(self) -> str:
        return "..."


def default_of(value: Any) -> Any:
    literal = value is inspect.Parameter.empty or value is None or isinstance(value, (bool, int, float, str))
    if isinstance(value, tuple) and all(isinstance(one, (bool, int, float, str)) for one in value):
        literal = True
    return value if literal and "/" not in str(value) and "0x" not in str(value) else Spoken()


def described(value: Any) -> Any:
    """None, a signature, or for a class that of its constructor and of its public members."""
    if inspect.isclass(value):
        members: dict[str, Any] = {}
        for base in reversed(value.__mro__):
            if base.__module__.split(".")[0] != "kenyon":
                continue
            for name, member in vars(base).items():
                if name.startswith("_") or name.endswith("_request"):  # the latter are scikit-learn's
                    continue
                function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
                members[name] = signature_of(function) if inspect.isroutine(function) else None
            fields = getattr(base, "__dataclass_fields__", {})
            members |= {name: None for name in fields if not name.startswith("_") and name not in members}
        return {ITSELF: signature_of(value), **dict(sorted(members.items()))}
    return signature_of(value) if inspect.isroutine(value) else None


def interface() -> Api:
    """Module -> public name -> description."""
    found: Api = {"kenyon": {name: described(getattr(kenyon, name)) for name in sorted(kenyon.__all__)}}
    for part in PARTS:
        module = importlib.import_module(f"kenyon.{part}")
        found[f"kenyon.{part}"] = {name: described(getattr(module, name)) for name in public_names(module)}
    return found


# -------------------------------------------------------------------------------------------------------------- pages


def python_of(path: Path) -> Iterator[str]:
    """The Python in a page, a notebook or a script."""
    text = path.read_text()
    if path.suffix == ".py":
        yield text
    elif path.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    else:
        yield from re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def imports_in(code: str) -> Iterator[str]:
    """`kenyon.tools:AF1`, or `kenyon.theory` of an import without names; also `kenyon.run` as an attribute."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # an excerpt
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kenyon":
            yield from (f"{node.module}:{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "kenyon")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kenyon":
            yield f"kenyon:{node.attr}"


def documented() -> list[str]:
    """Imports in the documentation and the examples, and names such as `kenyon.tools.lightning` in their text."""
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    code = [*pages, *(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")]
    found = {name for path in code for some in python_of(path) for name in imports_in(some)}
    for page in pages:
        spoken = set(re.findall(r"`(kenyon(?:\.\w+)+)(?:\(.*?\))?`", page.read_text()))
        found |= {name for name in (as_import(dotted) for dotted in spoken) if name is not None}
    return sorted(found)


def as_import(dotted: str) -> str | None:
    """Of a dotted name in a text: the module and its attribute, if there is such a thing."""
    if spec_of(dotted):
        return dotted
    module, _, name = dotted.rpartition(".")
    return f"{module}:{name}" if spec_of(module) and importable(f"{module}:{name}") else None


def spec_of(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, AttributeError):
        return False


def importable(name: str) -> bool:
    """An old path may warn that it is old; an optional package may be missing on this machine."""
    module, _, attribute = name.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        try:
            found = importlib.import_module(module)
        except (ImportError, kenyon.KenyonError) as error:
            return "kenyon." not in str(getattr(error, "name", "")) and in_source(module, attribute)
        if not attribute or hasattr(found, attribute):
            return True
        return spec_of(f"{module}.{attribute}")


def in_source(module: str, attribute: str) -> bool:
    """Of a module that needs a package which is missing here."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, kenyon.KenyonError):
        return False
    if spec is None or spec.origin is None:
        return False
    text = Path(spec.origin).read_text()
    return attribute in text or "import *" in text


# ----------------------------------------------------------------------------------------------------------- commands


def command_tree() -> Any:
    """The command line as Click has it."""
    from typer.main import get_command

    from kenyon.cli.app import app

    return get_command(app)


def commands(tree: Any) -> Api:
    """Command -> its arguments in their order, and its options. The program itself is the command without a name."""
    found = {"": described_command(tree)}
    for path, one in below(tree):
        found[path] = described_command(one)
    return found


def below(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in sorted(tree.commands.items()):
        if getattr(one, "commands", None):
            yield from below(one, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", one


def described_command(one: Any) -> Api:
    """Of options: whether they are flags, take several values, or turn something off, and their default."""
    options = {
        spelling: {
            "flag": bool(getattr(p, "is_flag", False)),
            "many": bool(p.multiple),
            "default": default_text(p.default),
            "off": spelling in p.secondary_opts,
        }
        for p in one.params
        if p.param_type_name == "option" and "completion" not in p.name
        for spelling in (*p.opts, *p.secondary_opts)
    }
    arguments = [[p.name, bool(p.required)] for p in one.params if p.param_type_name == "argument"]
    return {"arguments": arguments, "options": dict(sorted(options.items()))}


def default_text(value: Any) -> Any:
    """Versions of Click say differently that there is none."""
    if value is None or value is False or "UNSET" in str(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) else str(value)


# ------------------------------------------------------------------------------------------- names, values and output


def listed(*words: object) -> Any:
    return last_json(command("list", *words, "--json"))


@cache
def values_of(benchmark: str, method: str) -> Api | None:
    """Of all settings of a method on a benchmark."""
    try:
        told = listed("settings", "--benchmark", benchmark, "--method", method)["settings"]
    except RuntimeError:
        return None
    return {one["name"]: one["value"] for one in told if one["value"] is not None}


def settings() -> Api:
    return {one["name"]: one["methods"] for one in listed("settings")["settings"]}


def names(body: Any) -> list[str]:
    """Of a list that `kenyon list` gives."""
    (found,) = [value for value in body.values() if isinstance(value, list)]
    return [one["name"] for one in found]


def published(benchmarks: Iterable[str], methods: Iterable[str]) -> Api:
    """Benchmark -> method -> values of its settings; of a suite of games where the method is for games."""
    found: Api = {}
    for benchmark in benchmarks:
        find = values_of_games if benchmark in registered()["suite"] else values_of
        found[benchmark] = {}
        for method in methods:
            values = find(benchmark, method)
            if values is not None:
                found[benchmark][method] = values
    return found


@cache
def values_of_games(suite: str, method: str) -> Api | None:
    """No command lists these."""
    from kenyon.experiments import configure

    try:
        config = configure(suite, method).as_dict()
    except kenyon.KenyonError:
        return None
    return {
        k: v
        for part in ("training", "architecture", "hyper")
        for k, v in json.loads(json.dumps(config[part])).items()
    }


def factored(values: Api) -> Api:
    """With what all methods of a benchmark have alike under `*`."""
    found: Api = {}
    for benchmark, each in values.items():
        sets = [{(name, json.dumps(value)) for name, value in some.items()} for some in each.values()]
        alike = {name: json.loads(value) for name, value in sorted(set.intersection(*sets))}
        found[benchmark] = {"*": alike}
        for method, some in each.items():
            found[benchmark][method] = {name: value for name, value in some.items() if name not in alike}
    return found


def keys(body: Any, prefix: str = "") -> set[str]:
    """Of nested JSON, where names of results, games and so on are `*`."""
    if isinstance(body, list):
        return {key for one in body for key in keys(one, prefix)}
    if not isinstance(body, dict):
        return set()
    found = set()
    for name, value in body.items():
        place = f"{prefix}{'*' if prefix.endswith(FREE) or not re.fullmatch(r'[a-z_0-9]+', name) else name}/"
        found |= {place, *keys(value, place)}
    return found


FREE = ("methods/", "games/", "hyper/", "benchmarks/")  # below them are names that are no keys


def output() -> Api:
    """Keys of what `--json` prints."""
    return {
        "show": sorted(keys({"benchmarks": last_json(command("show", RESULTS, "--json"))})),
        "verify": sorted(keys(last_json(command("verify", RESULTS, "--json")))),
        "list benchmarks": sorted(keys(listed("benchmarks"))),
        "list methods": sorted(keys(listed("methods"))),
        "list settings": sorted(keys(listed("settings"))),
        "data list": sorted(keys(last_json(command("data", "list", "--json")))),
    }


@cache
def registered() -> Api:
    """Other names that a user may type."""
    from kenyon.analysis import ANALYSES
    from kenyon.reproduce import REPRODUCTIONS, SCALES

    from kenyon.rl import SUITES

    return {
        "analysis": sorted(ANALYSES),
        "reproduction": sorted(REPRODUCTIONS),
        "scale": sorted(SCALES),
        "suite": sorted(SUITES),
        "environment": sorted(
            {n for path in (ROOT / "src").rglob("*.py") for n in re.findall(r"\bKENYON_[A-Z_]+\b", path.read_text())}
        ),
        "extra": sorted(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]),
    }


def collect(of: tuple[Iterable[str], Iterable[str]] | None = None) -> Api:
    """`of`: the benchmarks and methods whose values are looked up, which takes long; otherwise all."""
    benchmarks, methods = names(listed("benchmarks")), names(listed("methods"))
    return {
        "version": kenyon.__version__,
        "interface": interface(),
        "imports": documented(),
        "commands": commands(command_tree()),
        "benchmarks": benchmarks,
        "methods": methods,
        "settings": settings(),
        "values": factored(published(*(of or (benchmarks, methods)))),
        "output": output(),
        "registered": registered(),
    }


# --------------------------------------------------------------------------------------------------------- comparison


def parameters(signature: str) -> dict[str, tuple[str, Any]]:
    """Name -> kind and default (no default: `inspect.Parameter.empty`; none that is a literal: `...`)."""
    tree = ast.parse(f"def f{signature}: pass").body[0]
    assert isinstance(tree, ast.FunctionDef)
    a = tree.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [inspect.Parameter.empty] * (len(positional) - len(a.defaults)) + [
        ast.literal_eval(d) for d in a.defaults
    ]
    found = {arg.arg: ("position", default) for arg, default in zip(positional, defaults, strict=True)}
    if a.vararg:
        found[f"*{a.vararg.arg}"] = ("*", inspect.Parameter.empty)
    for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found[arg.arg] = ("name", inspect.Parameter.empty if default is None else ast.literal_eval(default))
    if a.kwarg:
        found[f"**{a.kwarg.arg}"] = ("**", inspect.Parameter.empty)
    return found


def calls_refused(recorded: str, now: str | None) -> Iterator[str]:
    """What a call of then would meet: a parameter that is unknown, elsewhere, or has another default; a new one that
    must be given."""
    if now is None:
        yield "signature"
        return
    old, new = parameters(recorded), parameters(now)
    kinds = {kind for kind, _ in new.values()}
    places = [name for name, (kind, _) in new.items() if kind == "position"]
    for place, (name, (kind, default)) in enumerate(old.items()):
        if kind in ("*", "**"):
            if kind not in kinds:
                yield name
        elif name not in new:
            if "**" not in kinds:
                yield name
        elif kind == "position" and (place >= len(places) or places[place] != name) and "*" not in kinds:
            yield f"{name} by its position"
        elif default not in (inspect.Parameter.empty, ...) and new[name][1] not in (default, ...):
            yield f"default of {name}"
    for name, (kind, default) in new.items():
        if name not in old and kind in ("position", "name") and default is inspect.Parameter.empty:
            yield f"{name}, which must be given now"


def missing(recorded: Api, now: Api) -> Iterator[str]:
    """What was there and is not any more, each by a name for `deprecated.json`."""
    for module, some in recorded["interface"].items():
        for name, then in some.items():
            if not importable(f"{module}:{name}"):
                yield f"import {module}:{name}"
            else:
                yield from changed(f"{module}:{name}", then, described(resolved(module, name)))
    yield from (f"import {name}" for name in recorded["imports"] if not importable(name))
    for path, then in recorded["commands"].items():
        yield from command_changed(path, then, now["commands"].get(path))
    for kind in ("benchmarks", "methods"):
        yield from (f"{kind[:-1]} {name}" for name in recorded[kind] if name not in now[kind])
    for setting, methods in recorded["settings"].items():
        found = now["settings"].get(setting)
        if found is None:
            yield f"setting {setting}"
        else:
            yield from (f"setting {setting} of {method}" for method in methods if method not in found)
    for benchmark, some in now["values"].items():
        then = recorded["values"].get(benchmark, {})
        for method in set(some) & set(then) - {"*"}:
            here = some["*"] | some[method]
            for setting, value in (then["*"] | then[method]).items():
                if here.get(setting) != value:
                    yield f"value of {setting} of {method} on {benchmark}"
    for what in ("output", "registered"):
        for kind, entries in recorded[what].items():
            yield from (f"{kind} {name}" for name in entries if name not in now[what].get(kind, []))


def resolved(module: str, name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(module), name, None)


def changed(place: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, dict):
        if not isinstance(now, dict):
            yield f"class {place}"
            return
        for member, signature in then.items():
            if member not in now:
                yield f"member {place}.{member}"
            elif signature is not None:
                yield from (f"parameter {place}.{member} {what}" for what in calls_refused(signature, now[member]))
    elif then is not None:
        # A function may have become a class that is called alike.
        signature = now.get(ITSELF) if isinstance(now, dict) else now
        yield from (f"parameter {place} {what}" for what in calls_refused(then, signature))


def command_changed(path: str, then: Api, now: Api | None) -> Iterator[str]:
    if now is None:
        yield f"command {path}"
        return
    required = [required for _, required in now["arguments"]]
    if len(now["arguments"]) < len(then["arguments"]):
        yield f"arguments of {path}"
    if any(required[len(then["arguments"]) :]) or any(
        new and not old for new, (_, old) in zip(required, then["arguments"], strict=False)
    ):
        yield f"arguments of {path}, which must be given now"
    for option, said in then["options"].items():
        if option not in now["options"]:
            yield f"option {path} {option}"
        else:
            found = now["options"][option]
            yield from (f"{what} of option {path} {option}" for what in said if found[what] != said[what])


def deprecated() -> dict[str, str]:
    """What goes on purpose: a name as `--check` prints it, `*` for any part of it, and the reason."""
    body: dict[str, str] = json.loads(DEPRECATED.read_text())
    return body


def unexcused(gone: Iterable[str], excused: Iterable[str]) -> list[str]:
    patterns = [re.escape(name).replace(r"\*", ".*") for name in excused]
    return [name for name in gone if not any(re.fullmatch(pattern, name) for pattern in patterns)]


def compact(api: Api) -> str:
    """A line for each entry of the second level, so that changes can be read."""
    parts = []
    for name, body in api.items():
        if isinstance(body, dict) and body:
            lines = ",\n  ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in body.items())
            parts.append(f"{json.dumps(name)}: {{\n  {lines}\n}}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(body)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.api", description="The public interface as a list.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="write api.json")
    what.add_argument("--check", action="store_true", help="compare with api.json, and say what is missing")
    asked = parser.parse_args()
    if asked.record:
        FILE.write_text(compact(collect()))
        return 0
    gone = unexcused(missing(json.loads(FILE.read_text()), collect()), deprecated())
    print("\n".join([*gone, f"{len(gone)} differences, {len(deprecated())} entries in {DEPRECATED.name}."]))
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
