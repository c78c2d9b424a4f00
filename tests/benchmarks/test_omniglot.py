from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from kenyon.benchmarks import omniglot
from kenyon.benchmarks.omniglot import FINE, enlarge, poses
from kenyon.data import Source, find_source
from kenyon.datasets.archives import OMNIGLOT, data_folders, locate
from kenyon.errors import DataError
from tests.image_replicas import OMNIGLOT_CHARACTERS, pack, write_omniglot

COUNTS = tuple(count for part in OMNIGLOT_CHARACTERS for count in part)


@pytest.fixture(autouse=True)
def few_alphabets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("realdata") is None:
        monkeypatch.setattr(omniglot, "CHARACTERS", OMNIGLOT_CHARACTERS)


def load(folder: Path, name: str = "omniglot") -> Source:
    return find_source(name).load(folder)


def test_alphabets_are_tasks_in_fixed_order(tmp_path: Path) -> None:
    source = load(write_omniglot(tmp_path))
    assert source.images.shape == (sum(COUNTS) * 400, 1, 28, 28)
    for seed in (0, 1):
        stream = source.stream(seed)
        assert [task.name for task in stream.tasks] == ["Alphabet of the Magi", "Tifinagh", "Angelic", "ULOG"]
        assert stream.class_counts == COUNTS and stream.input_shape == (1, 28, 28)
        for task, count in zip(stream.tasks, COUNTS, strict=True):
            sizes = (len(task.train), len(task.validation), len(task.test))
            assert sizes == (320 * count, 40 * count, 40 * count)
    assert source.class_names[:3] == (
        "Alphabet_of_the_Magi character01",
        "Alphabet_of_the_Magi character02",
        "Tifinagh character01",
    )


def test_the_published_split_lets_versions_straddle_and_depends_on_the_seed(tmp_path: Path) -> None:
    source = load(write_omniglot(tmp_path))
    one, other = (source.stream(seed).tasks[1] for seed in (0, 1))
    assert not torch.equal(one.test.index, other.test.index)
    together = torch.cat([one.train.index, one.validation.index, one.test.index]).sort().values
    assert torch.equal(together, torch.arange(2 * 400, 5 * 400))
    drawings_tested, drawings_learned = (set((split.index // 20).tolist()) for split in (one.test, one.train))
    assert drawings_tested & drawings_learned


def test_the_clean_split_keeps_each_person_on_one_side(tmp_path: Path) -> None:
    source = load(write_omniglot(tmp_path), "omniglot-clean")
    tested = set()
    for seed in range(4):
        for task in source.stream(seed).tasks:
            people = [set((split.index // 20 % 20).tolist()) for split in (task.train, task.validation, task.test)]
            assert [len(part) for part in people] == [16, 2, 2] and len(set.union(*people)) == 20
            for split in (task.train, task.validation, task.test):
                assert set(split.labels.tolist()) == set(range(len(task.classes)))
            tested.add(tuple(sorted(people[2])))
    assert len(tested) > 10


def test_zips_folders_and_mixtures_hold_the_same(tmp_path: Path) -> None:
    images = load(write_omniglot(tmp_path / "folders")).images
    background, evaluation = OMNIGLOT.archives
    inside = write_omniglot(tmp_path / "zips" / "omniglot-py")
    pack(inside / "images_background", background)
    assert torch.equal(load(tmp_path / "zips").images, images)  # one of each
    pack(inside / "images_evaluation", evaluation)
    assert torch.equal(load(tmp_path / "zips").images, images)
    assert torch.equal(load(inside).images, images)


def test_an_image_is_black_ink_on_white_paper_without_end(tmp_path: Path) -> None:
    images = load(write_omniglot(tmp_path)).images.float()
    versions = images.view(-1, 20, 28, 28)
    assert len(torch.unique(versions[0].flatten(1), dim=0)) == 20
    as_drawn = versions[:, 0]
    assert float((as_drawn == 255).float().mean()) > 0.7 and float(as_drawn.amin((1, 2)).max()) < 60
    ink = (255 - versions).sum((2, 3))
    assert float((ink / ink[:, :1]).sub(1).abs().max()) < 0.1  # turning and shifting keep it
    lying = poses(len(versions), omniglot.VERSIONS, omniglot.DEGREES, omniglot.PIXELS)
    sheets = enlarge(torch.full((len(versions), FINE, FINE), 255, dtype=torch.uint8), lying)
    beyond = sheets[:, 1:] == 0
    assert bool((versions[:, 1:][beyond] == 255).all()) and float(beyond.float().mean()) > 0.01


def missing_character(folder: Path) -> None:
    shutil.rmtree(folder / "images_background" / "Tifinagh" / "character02")


def missing_drawing(folder: Path) -> None:
    (folder / "images_background" / "Tifinagh" / "character02" / "0004_07.png").unlink()


def another_alphabet(folder: Path) -> None:
    shutil.copytree(folder / "images_evaluation" / "ULOG", folder / "images_evaluation" / "Volapük")


def another_size(folder: Path) -> None:
    Image.new("1", (200, 100)).save(folder / "images_background" / "Tifinagh" / "character02" / "0004_07.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (another_size, "0004_07.png has 200 x 100 pixels, not 105 x 105"),
        (missing_character, "Tifinagh holds 2 characters, where 3"),
        (missing_drawing, "character02 holds 19 drawings, where 20"),
        (another_alphabet, "holds 3 alphabets, where images_evaluation has 2"),
    ],
)
def test_incomplete_and_foreign_folders_are_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(write_omniglot(tmp_path))
    with pytest.raises(DataError, match=f"{message}.*kenyon data get omniglot"):
        load(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    shutil.rmtree(write_omniglot(tmp_path) / "images_evaluation")
    with pytest.raises(DataError, match=r"images_evaluation/ or images_evaluation\.zip"):
        load(tmp_path)


def test_a_damaged_drawing_is_named_and_leaves_nothing(tmp_path: Path, decoded: Path) -> None:
    drawing = write_omniglot(tmp_path) / "images_evaluation" / "ULOG" / "character01" / "0007_11.png"
    drawing.write_bytes(drawing.read_bytes()[:60])
    with pytest.raises(DataError, match=r"0007_11\.png is not an image"):
        load(tmp_path)
    assert list(decoded.iterdir()) == []


def test_a_truncated_zip_is_named(tmp_path: Path) -> None:
    write_omniglot(tmp_path)
    for archive in OMNIGLOT.archives:
        path = pack(tmp_path / archive.folder, archive)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match=r"images_evaluation\.zip is damaged.*kenyon data get omniglot"):
        load(tmp_path)


@pytest.mark.realdata
def test_the_real_files() -> None:
    if locate(OMNIGLOT, data_folders(None)) is None:
        pytest.skip("needs the real omniglot")
    for name in ("omniglot", "omniglot-clean"):
        spec = find_source(name)
        stream = spec.load(None).stream(0)
        assert stream.class_counts == spec.class_counts and stream.input_shape == spec.shape
        assert sum(map(len, (task.train for task in stream.tasks))) == 519_360
        assert stream.tasks[29].name == "Tifinagh" and len(stream.tasks[29].classes) == 55
