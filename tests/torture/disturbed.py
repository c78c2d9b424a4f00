"""What is disturbed by faults: commands on small things, what they need, and what reads what they leave."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHIVE = b"\x1f\x8b" + hashlib.shake_256(b"archive").digest(700_000)
SMALL = "--epochs 2 --tasks 2 --device cpu --set width=2 --set batch=128 --out {here}/out"
EXPERIMENT = """
benchmark = "digits"
method = ["ewc"]
seeds = 1

[settings]
lambda_sp = [10.0, 1e4]
epochs = 2
width = 2
batch = 128
"""


@dataclass(frozen=True)
class Target:
    """What is done in a folder, and what reads the outcome. Both take the folder."""

    name: str
    deed: Callable[[Path], Any]
    prepare: Callable[[Path], Any] = lambda here: None
    reads: tuple[Callable[[Path], Any], ...] = ()


def targets(url: str) -> list[Target]:
    """`url`: where an archive can be downloaded."""
    run = command(f"run digits --method finetune,ewc --seeds 2 --no-fwt {SMALL}")
    every = command(f"run digits --method caf-ewc --set learners=2 --seeds 1 --no-fwt --keep-every-task {SMALL}")
    games = command("run rl-mini --method ewc --seeds 1 --games catch --steps 512 --device cpu --out {here}/out")
    sweep = command("sweep {here}/it.toml --tasks 2 --no-fwt --device cpu --fleet 1 --out {here}/out")
    search = command(f"search digits --method ewc --set lambda_sp=10,10000 {SMALL}")
    get = command(f"data get made --data {{here}}/data --url {url}")
    show, page = command("show {here}/out"), command("report {here}/out --out {here}-page.html")
    return [
        Target("run", run, reads=(show, page)),
        Target("run that goes on", run, _interrupted, (show,)),
        Target("run, weights after every task", every, reads=(show,)),
        Target("run of games", games, reads=(show, page)),
        Target("sweep", sweep, _experiment, (show, command("sweep --status --out {here}/out"))),
        Target("search", search, reads=(show,)),
        Target("analyse", command("analyse {here}/out --what change"), run, (page,)),
        Target("reproduce", command("reproduce fig3b --device cpu --out {here}/out")),
        Target("report", command("report {here}/out --out {here}/report.html"), run),
        Target("data get", get, reads=(command("data list --data {here}/data"),)),
        Target("decoding", in_python(_decoded), _images),
        Target("learner.save", in_python(_saved), _learners, (in_python(_loaded),)),
    ]


def command(text: str) -> Callable[[Path], None]:
    """A command of the program, with the folder for {here}, through the `main` that the program runs."""

    def run(here: Path) -> None:
        from kenyon.cli import main

        words = [word.replace("{here}", str(here)) for word in shlex.split(text)]
        before, sys.argv = sys.argv, ["kenyon", *words]
        try:
            main()
        finally:
            sys.argv = before

    return run


def in_python(deed: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """What has no command: its errors are told as the program tells them."""

    def run(here: Path) -> Any:
        from kenyon.errors import KenyonError

        try:
            return deed(here)
        except KenyonError as error:
            print(f"Error: {error}")
            sys.exit(1)

    return run


def _interrupted(here: Path) -> None:
    """Two of its four epochs are done, and two states of them there."""
    from kenyon.experiments import execute, plan
    from kenyon.training import Interrupted
    from tests.experiments.small import stop_after

    given = {"epochs": 2, "width": 2, "batch": 128}
    with contextlib.suppress(Interrupted):
        execute(
            plan(
                "digits", ["finetune", "ewc"], 2, tasks=2, overrides=given, device="cpu", out=here / "out", fwt=False
            ),
            stop=stop_after(2),
        )


def _experiment(here: Path) -> None:
    (here / "it.toml").write_text(EXPERIMENT)


def _images(here: Path) -> None:
    import numpy as np
    from PIL import Image

    draws = np.random.default_rng(0)
    for number in range(10):
        path = here / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(path)


def _decoded(here: Path) -> str:
    from kenyon.data.folders import ImageFiles

    pixels = ImageFiles.of(here / "images").scaled(8, False)
    return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()


def _learners(here: Path) -> None:
    from tests.estimator.small import blobs, quick

    learner = quick(epochs=1).fit(*blobs(0), task="one", test=blobs(0))
    learner.save(here / "one.safetensors")
    learner.fit(*blobs(1), task="two", test=blobs(1)).save(here / "in.safetensors")


def _saved(here: Path) -> None:
    """Once where an earlier learner is, once in a new folder."""
    from kenyon import ContinualLearner

    learner = ContinualLearner.load(here / "in.safetensors", device="cpu")
    learner.save(here / "one.safetensors")
    learner.save(here / "new" / "folder" / "two.safetensors")


def _loaded(here: Path) -> list[int]:
    from kenyon import ContinualLearner

    names = [here / "one.safetensors", here / "new" / "folder" / "two.safetensors"]
    return [len(ContinualLearner.load(name, device="cpu").tasks_) for name in names if name.exists()]


@contextlib.contextmanager
def archive_served() -> Iterator[str]:
    """The address of an archive, with ranges, from a process of its own: a thread would not survive the forks."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
            start = int(wanted[1]) if wanted else 0
            if start >= len(ARCHIVE):
                self.send_error(416)
                return
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(ARCHIVE) - 1}/{len(ARCHIVE)}")
            self.send_header("Content-Length", str(len(ARCHIVE) - start))
            self.end_headers()
            with contextlib.suppress(OSError):  # who asked was killed
                self.wfile.write(ARCHIVE[start:])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = os.fork()
    if serving == 0:
        try:
            server.serve_forever()
        finally:
            os._exit(0)
    try:
        yield f"http://127.0.0.1:{server.server_port}/made.tar.gz"
    finally:
        os.kill(serving, signal.SIGKILL)
        os.waitpid(serving, 0)
        server.server_close()


def import_everything() -> None:
    """Once, before the forks. No duration is measured, so that files have the same bytes every time."""
    import kenyon.utils.clock

    kenyon.utils.clock.since = lambda started: 0.0
    import matplotlib as mpl
    import torch

    torch.set_num_threads(1)
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "the same every time"
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg
    import matplotlib.font_manager
    import matplotlib.pyplot  # noqa: F401

    import kenyon.cli.app
    import kenyon.cli.results
    import kenyon.datasets
    import kenyon.estimator
    import kenyon.sweep.leases
    import kenyon.sweep.plan
    import kenyon.sweep.storage
    from kenyon.datasets.archives import Archive, Dataset
    from kenyon.experiments import games, training

    # Nobody waits for the leases of what was killed, and there is a state after every epoch.
    for place in (kenyon.sweep.leases, kenyon.sweep.plan):
        place.EXPIRY = 0.3
    kenyon.sweep.storage.Folder.pause = 0.01
    for module in (training, games):
        module.SAVE_EVERY = module.REST = 0.0  # type: ignore[attr-defined]
    digest = hashlib.sha256(ARCHIVE).hexdigest()
    made = Archive("https://nowhere/made.tar.gz", len(ARCHIVE), f"sha256:{digest}", "made", ("it",))
    kenyon.datasets.DATASETS["made"] = Dataset("made", (made,))
    # What is imported and read on the way, which takes longer than all the rest.
    nowhere = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        contextlib.suppress(SystemExit),
    ):
        targets("")[0].deed(Path(folder))
