"""Everything that Kenyon reads: how a good one looks, and who reads it."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save as to_bytes

from kenyon.bench.result import BenchResult
from kenyon.benchmarks import tiny_imagenet
from kenyon.cli import main
from kenyon.data import find_source
from kenyon.datasets import cache
from kenyon.datasets.images import _decode_one
from kenyon.datasets.pickles import load_plain_pickle
from kenyon.datasets.trees import Tar, Trait, Uses, Zip
from kenyon.errors import KenyonError
from kenyon.experiments import parse_settings
from kenyon.experiments.config import Config
from kenyon.experiments.grid import GridPoint, RunSpec
from kenyon.experiments.results import Result
from kenyon.experiments.runner import plan
from kenyon.experiments.spec import merge_spec, read_spec
from kenyon.experiments.store import read_state
from kenyon.experiments.training import build_trainer
from kenyon.experiments.weights import read_weights, rows_of
from kenyon.report.formats import results_markdown
from kenyon.report.page.sections import outdated_analysis, read_analysis
from kenyon.report.tables import results_json, results_table
from kenyon.training.checkpoint import Position, load_state, save_state
from tests.datasets.test_pickles import PYTHON_2, PYTHON_3
from tests.torture.fuzzing import Target, bytes_flipped, json_changed

FORMAT_1 = Path(__file__).parents[1] / "experiments" / "format-1"
ROOT = Path(__file__).parents[2]
TOML = b"""benchmark = "digits"
method = ["ewc", "caf-ewc"]
seeds = [0, 3]

[settings]
lambda_sp = [5000, 1e6]
gamma = 0.1
epochs = 2
width = 3
diversity = "low"
gate = true

[origin]
anything = "goes"
"""


class Lines:
    """A data folder in memory."""

    remedy = "Get another copy."

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def where(self, name: str) -> str:
        return name

    def names(self) -> list[str]:
        return sorted(self.files)

    def traits(self, uses: Uses) -> list[Trait]:
        return []

    def contents(self, names: Collection[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
        for name in names:
            yield name, lambda name=name: self.files[name]  # type: ignore[misc]


def targets(folder: Path, patch: pytest.MonkeyPatch) -> list[Target]:
    """Those that read a file find it in `folder`."""
    patch.setattr("kenyon.datasets.cache.decoded_folder", lambda: folder / "decoded")
    patch.setattr("kenyon.datasets.cache.os.fsync", lambda handle: None)  # a disk takes longer than all the rest
    patch.setattr("kenyon.experiments.runner.check_folders", lambda *what: None)
    patch.setattr("kenyon.experiments.hyper_search.check_folders", lambda *what: None)

    def file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], None]:
        path = folder / name

        def feed(content: bytes) -> None:
            path.write_bytes(content)
            read(path)

        return feed

    result = (FORMAT_1 / "result.json").read_bytes()
    several = (ROOT / "benchmarks/cpu/digits/caf-ewc/result.json").read_bytes()
    return [
        Target("pickles", (PYTHON_2, PYTHON_3), lambda raw: _void(load_plain_pickle(raw, "it")), bytes_flipped, 5.0),
        Target("zips", (_zip(),), file("a.zip", _read_zip), bytes_flipped, 1.0),
        Target("tars", (_tar(),), file("a.tar.gz", _read_tar), bytes_flipped, 1.0),
        Target("images", _images(), _read_image, bytes_flipped, 6.0),
        Target("tables", (_table(),), _read_table, bytes_flipped, 4.0),
        Target("states", _states(folder), file("state-1.safetensors", _read_a_state), bytes_flipped, 1.5),
        Target("heads", _heads(), file("state-2.safetensors", _read_a_head), json_changed, 0.5),
        Target("weights", ((FORMAT_1 / "weights-0.safetensors").read_bytes(),), _weights(file), bytes_flipped, 1.0),
        Target("results", (result, several), file("result.json", _read_result), json_changed, 0.2),
        Target("caches", (_cache(folder / "decoded"),), _read_cache(folder / "decoded"), json_changed, 0.3),
        Target("analyses", (_view(),), file("view.json", _read_analysis), json_changed, 1.0),
        Target("benches", ((ROOT / "benchmarks/bench-cpu.json").read_bytes(),), file("b.json", BenchResult.load),
               json_changed, 0.1),
        Target("configurations", (TOML,), file("c.toml", _read_toml(folder)), bytes_flipped, 0.5),
    ]  # fmt: skip


def _void(value: object) -> None:
    pass


def _zip() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("set/a.txt", "set/b/c.txt", "other.txt"):
            archive.writestr(name, name * 20)
    return raw.getvalue()


def _tar() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name in ("set/a.txt", "set/b/c.txt", "other.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 20 * len(name)
            archive.addfile(entry, io.BytesIO(name.encode() * 20))
    return raw.getvalue()


def _read_zip(path: Path) -> None:
    tree = Zip(path, "set", "Get another copy.")
    try:
        for _, read in tree.contents(tree.names()):
            read()
    finally:
        if "_file" in vars(tree):
            tree._file.close()


def _read_tar(path: Path) -> None:
    tree = Tar(path, "set", "Get another copy.")
    for _, read in tree.contents(tree.names()):
        read()


def _images() -> tuple[bytes, ...]:
    pixels = np.arange(12 * 9 * 3, dtype=np.uint8).reshape(12, 9, 3)
    found = []
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        raw = io.BytesIO()
        Image.fromarray(pixels).save(raw, kind)
        found.append(raw.getvalue())
    return tuple(found)


def _read_image(content: bytes) -> None:
    _decode_one((Lines({}), "a.png"), lambda: content, lambda image: np.asarray(image.convert("RGB")))


TABLES = ("wnids.txt", tiny_imagenet.ANNOTATIONS, "words.txt")


def _table() -> bytes:
    """The three tables of Tiny ImageNet in one input, with a mark between."""
    wnids = [f"n{number:08d}" for number in range(3)]
    rows = [f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62" for number, wnid in enumerate(wnids)]
    words = [f"{wnid}\tword, {wnid}" for wnid in wnids]
    return b"\n====\n".join("\n".join(lines).encode() for lines in (wnids, rows, words))


def _read_table(content: bytes) -> None:
    parts = (*content.split(b"\n====\n"), b"", b"", b"")[:3]
    images = {f"val/images/val_{number}.JPEG": b"" for number in range(3)}
    tree: Any = Lines(dict(zip(TABLES, parts, strict=True)) | images)
    classes = tiny_imagenet.read_text(tree, "wnids.txt").split()
    part = tiny_imagenet._test(tree, tree.names())
    tiny_imagenet._count(tree, part, classes, "val")
    tiny_imagenet._names(tree, tree.names(), classes)


def _states(folder: Path) -> tuple[bytes, ...]:
    path = folder / "good"
    config = Result.load(FORMAT_1 / "result.json").config
    identity = json.dumps({"config": config, "seeds": [0, 1]})
    records = [{"accuracy": [[1.0], [2.0]]}]
    at = Position(1, 3, 8.0, [None, [0, 2]], records)
    save_state(path, {"theta": torch.arange(10.0).view(2, 5), "steps": torch.arange(2)}, at, identity)
    return path.read_bytes(), (FORMAT_1 / "state-31d02360.safetensors").read_bytes()


def _read_a_state(path: Path) -> None:
    state = read_state(path)
    tensors = {"theta": torch.zeros(2, 5), "steps": torch.zeros(2, dtype=torch.long)}
    if state is not None:
        load_state(path, tensors, state.identity)


def _heads() -> tuple[bytes, ...]:
    """What a state says of itself, as JSON inside of JSON would have it."""
    config = Result.load(FORMAT_1 / "result.json").config
    at = asdict(Position(1, 3, 8.0, [None, [0, 2]], [{"accuracy": [[1.0], [2.0]]}]))
    one = {"config": config, "seeds": [0, 1]}
    points = {"points": [{"config": config, "seeds": [seed], "point": {"lambda_sp": seed}} for seed in (3, 4)]}
    return tuple(json.dumps({"format": "1", "identity": i, "position": at}).encode() for i in (one, points))


def _read_a_head(path: Path) -> None:
    try:
        head = json.loads(path.read_bytes())
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in head.items()}
        raw = to_bytes({"theta": torch.zeros(2, 5), "steps": torch.zeros(2, dtype=torch.long)}, metadata=texts)
    except Exception:  # no longer JSON, or nothing that the format can hold
        raw = path.read_bytes()
    path.write_bytes(raw)
    _read_a_state(path)


def _weights(file: Callable[[str, Callable[[Path], Any]], Callable[[bytes], None]]) -> Callable[[bytes], None]:
    result = Result.load(FORMAT_1 / "result.json")
    config = Config.from_dict(result.config)
    trainer = build_trainer([RunSpec(GridPoint(config), 0)], find_source("digits").load(None), torch.device("cpu"))

    def read(path: Path) -> None:
        rows_of(trainer.net, read_weights(path, result.config, 0), trainer.method, 1)

    return file("weights-0.safetensors", read)


def _read_result(path: Path) -> None:
    result = Result.load(path)
    by_label = {result.label: result}
    results_table(by_label)
    json.dumps(results_json(by_label, 1.0, "cpu"))
    results_markdown({result.benchmark: by_label})
    result.to_json()
    Config.from_dict(result.config)


PIXELS = np.arange(64, dtype=np.uint8)
IDENTITY = {"what": "made", "making": [1, 28]}


def _build(file: IO[bytes]) -> dict[str, Any]:
    file.write(PIXELS.tobytes())
    return {"names": ["a", "b"]}


def _cache(folder: Path) -> bytes:
    cache.cached("made", IDENTITY, _build)
    return next(folder.glob("*.json")).read_bytes()


def _read_cache(folder: Path) -> Callable[[bytes], None]:
    def feed(content: bytes) -> None:
        next(folder.glob("*.json")).write_bytes(content)
        found = cache.cached("made", IDENTITY, _build)
        assert np.array_equal(found.pixels, PIXELS)

    return feed


def _view() -> bytes:
    view = {
        "kind": "line",
        "title": "t",
        "x": {"label": "x", "values": [1, 2]},
        "y": {"label": "y"},
        "series": [{"name": "s", "values": [1.0, 2.0]}],
    }
    runs = [{"seed": 0, "run": "d1", "basis": "d2"}]
    analysed = {
        "analysis": "flatness",
        "configuration": "",
        "runs": runs,
        "of": {"a": "view.json"},
        "basis": {"a": {}},
    }
    return json.dumps({"view": view, **analysed}).encode()


def _read_analysis(path: Path) -> None:
    body, _ = read_analysis(path)
    result = Result.load(FORMAT_1 / "result.json")
    outdated_analysis(body, path.parent, {path.parent: result, path.parent.parent: result})


def _read_toml(folder: Path) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        wanted = merge_spec(read_spec(path), {})
        given = {"overrides": wanted.settings, "device": "cpu", "out": folder / "out"}
        plan(wanted.benchmarks[0], wanted.methods, wanted.seeds or 5, **given)  # type: ignore[arg-type]

    return read


# ---------------------------------------------------------------------- what is typed


def read_settings(pairs: list[str], methods: tuple[str, ...] = ("ewc", "caf-ewc")) -> None:
    plan("digits", methods, 2, overrides=parse_settings(pairs, methods), device="cpu", out="nowhere")


class _Trained(KenyonError):
    """So far and no further."""


def nothing_happens(patch: pytest.MonkeyPatch) -> None:
    """Commands come as far as what would take long."""

    def stop(*what: object, **more: object) -> None:
        raise _Trained("Here it would begin.")

    for place in (
        "kenyon.experiments.runner.execute",
        "kenyon.experiments.hyper_search.execute_search",
        "kenyon.bench.run_bench",
        "kenyon.datasets.download",
        "kenyon.paper.reproduce.reproduce",
        "kenyon.paper.analyses.analyse",
    ):
        patch.setattr(place, stop)
    patch.setattr("kenyon.experiments.runner.check_folders", lambda *what: None)
    patch.setattr("kenyon.experiments.hyper_search.check_folders", lambda *what: None)


def type_command(words: list[str]) -> None:
    """As the program itself runs it: whatever is wrong is told, and the exit code says so."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["kenyon", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as leaving:
        assert leaving.code in (None, 0, 1, 2), leaving.code
        assert leaving.code in (None, 0) or err.getvalue().strip() or out.getvalue().strip(), words
    finally:
        sys.argv = before
    assert "Traceback" not in err.getvalue()
