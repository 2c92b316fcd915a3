"""examples/paper_data.py: each data set is read from the files of its archive, value by value; an error names the
folder, the damaged or missing file, and the address; the trainings take --data."""

import bz2
import gzip
import importlib
import io
import lzma
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import run_threads

import hpcomm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
data: Any = importlib.import_module("paper_data")
text_data: Any = importlib.import_module("text_data")
flow_data, factors_data = (importlib.import_module(f"{name}.data") for name in ("flow", "factors"))

EACH = 4  # pictures of a batch
PIXELS = np.random.default_rng(0).integers(0, 256, (6, EACH, 3072)).astype(np.uint8)
LABELS = np.arange(6 * EACH).reshape(6, EACH) % 10
RATED = [[1, 31, 2.5], [7, 131262, 0.5], [671, 1, 5.0]]
TRAIN, TEST = "3 1:0.5 4:2\n-1 2:1.5\n", "-1 6:8\n7 1:1\n3 4:1\n"
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
MORE = "3 1:1\n-1 2:1\n" * 20
TEXTS = {"alt.atheism": ["a god", "no god \xe9"], "sci.space": ["a moon and a star", "a star and a moon", "the orbit"]}


class Python2(pickle._Pickler):
    """Writes str, bytes and flags as Python 2 and its NumPy did, which made the batches of CIFAR-10."""

    write: Callable[[bytes], object]
    memoize: Callable[[object], object]

    def save_string(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        size = b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + len(raw).to_bytes(4, "little")
        self.write(size + raw)
        self.memoize(text)

    def save_flag(self, flag: bool) -> None:
        self.write(b"K" + bytes([flag]))

    saved: ClassVar[Any] = {str: save_string, bytes: save_string, bool: save_flag}
    dispatch: ClassVar[Any] = {**pickle._Pickler.dispatch, **saved}


def pickled(value: object) -> bytes:
    file = io.BytesIO()
    Python2(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core", b"numpy.core")


def batches(folder: Path, binary: bool) -> None:
    folder.mkdir()
    for name, pixels, labels in zip(data.BATCHES, PIXELS, LABELS, strict=True):
        if binary:
            rows = np.concatenate([labels[:, None].astype(np.uint8), pixels], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            batch = {"batch_label": "batch", "data": pixels, "labels": labels.tolist(), "filenames": ["a.png"] * EACH}
            (folder / name).write_bytes(pickled(batch))


def ratings(folder: Path, dat: bool) -> None:
    folder.mkdir()
    separator = "::" if dat else ","
    lines = [separator.join([f"{user:g}", f"{movie:g}", f"{stars:g}", "1260759144"]) for user, movie, stars in RATED]
    first = [] if dat else [data.HEADER]
    (folder / ("ratings.dat" if dat else "ratings.csv")).write_text("\n".join([*first, *lines]) + "\n")


def news(folder: Path) -> None:
    for part in data.NEWS:
        for group, texts in TEXTS.items():
            (folder / part / group).mkdir(parents=True)
            for i, text in enumerate(texts[: None if part == data.NEWS[0] else 1]):
                (folder / part / group / f"{i}").write_bytes(text.encode("latin-1"))


def rcv1(folder: Path, packed: str = "", kinds: str = "binary", train: str = MORE, test: str = MORE) -> None:
    pack = PACKED[packed]
    (folder / f"rcv1_train.{kinds}{packed}").write_bytes(pack(train.encode()))
    (folder / f"rcv1_test.{kinds}{packed}").write_bytes(pack(test.encode()))


# ---- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("name", "binary"), [("cifar-10-batches-py", False), ("cifar-10-batches-bin", True)])
def test_pictures_are_those_of_the_batches(tmp_path: Path, name: str, binary: bool, inside: bool) -> None:
    batches(tmp_path / name, binary)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = data.load(tmp_path / name if inside else tmp_path, data.PICTURES)
    assert (read.name, read.classes, read.x.dtype, read.y.dtype) == ("CIFAR-10", 10, np.uint8, np.int64)
    assert (read.x.shape, read.test_x.shape) == ((5 * EACH, 3, 32, 32), (EACH, 3, 32, 32))
    np.testing.assert_array_equal(read.x.reshape(5, EACH, 3072), PIXELS[:5])
    np.testing.assert_array_equal(read.test_x.reshape(EACH, 3072), PIXELS[5])
    np.testing.assert_array_equal(read.y, LABELS[:5].ravel())
    np.testing.assert_array_equal(read.test_y, LABELS[5])
    assert read.x[6, 2, 5, 7] == PIXELS[1, 2, 2 * 1024 + 5 * 32 + 7]  # colour, line, column
    np.testing.assert_allclose(data.standard(read.x[0, 0, 0]), (PIXELS[0, 0, :32] - 120.7) / 64.15, rtol=1e-5)


@pytest.mark.parametrize(("name", "dat"), [("ml-latest-small", False), ("ml-1m", True), ("ml-10M100K", True)])
def test_ratings_are_those_of_the_table(tmp_path: Path, name: str, dat: bool) -> None:
    ratings(tmp_path / name, dat)
    for folder in (tmp_path, tmp_path / name):
        read = data.load(folder, data.RATINGS)
        assert read.dtype == np.float64
        np.testing.assert_array_equal(read, RATED)


@pytest.mark.parametrize("packed", PACKED)
def test_svmlight_rows_have_the_columns_and_classes_of_both_files(tmp_path: Path, packed: str) -> None:
    rcv1(tmp_path, packed, "multiclass", TRAIN, TEST)
    read = data.rows(tmp_path, 99)
    assert (read.name, read.kinds) == ("RCV1, all classes", ("-1", "3", "7"))
    assert (read.x.dtype, read.x.shape, read.test_x.shape) == (np.float32, (2, 6), (3, 6))
    np.testing.assert_array_equal(read.x.toarray(), [[0.5, 0, 0, 2, 0, 0], [0, 1.5, 0, 0, 0, 0]])
    np.testing.assert_array_equal(read.test_x.toarray(), [[0] * 5 + [8], [1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0]])
    assert (read.y.tolist(), read.test_y.tolist()) == ([1, 0], [0, 2, 1])
    alone = data.rows(tmp_path / f"rcv1_train.multiclass{packed}", 99)
    np.testing.assert_array_equal(alone.x.toarray(), read.x.toarray()[:, :4])
    assert (alone.kinds, alone.test_x.shape, len(alone.test_y)) == (("-1", "3"), (0, 4), 0)


def test_newsgroups_are_hashed_words_of_both_folders(tmp_path: Path) -> None:
    news(tmp_path)
    read = data.rows(tmp_path, 1 << 12)
    assert (read.name, read.kinds) == ("20 Newsgroups", tuple(TEXTS))
    assert (read.x.dtype, read.x.shape, read.test_x.shape) == (np.float32, (5, 4096), (2, 4096))
    assert (read.y.tolist(), read.test_y.tolist()) == ([0, 0, 1, 1, 1], [0, 1])
    x, test_x = read.x.toarray(), read.test_x.toarray()
    np.testing.assert_array_equal(test_x, x[[0, 2]])  # the same texts, by weights of the first folder
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), 1, rtol=1e-5)
    rare, common = (np.log(6 / (1 + texts)) + 1 for texts in (1, 2))  # "no" is in one of five texts, "god" in two
    np.testing.assert_allclose(np.sort(x[1])[-3:] / x[1].max(), [common / rare, 1, 1], rtol=1e-5)
    assert np.count_nonzero(x, axis=1).tolist() == [1, 3, 5, 5, 3]  # words of two letters and more, and their pairs


def test_a_set_s_own_tests_are_the_tests(tmp_path: Path) -> None:
    rcv1(tmp_path, train=MORE + TRAIN, test=TEST.replace("7", "3"))
    task = text_data.svmlight(str(tmp_path), 9, 0)
    assert (task.name, task.train.features, len(task.train), len(task.test)) == ("RCV1, two classes", 6, 42, 3)
    assert task.test.labels.tolist() == [-1, 1, 1]
    words = flow_data.split_words(flow_data.words_of(str(tmp_path), 9), 0)
    assert (words.classes, words.y.tolist(), words.test_y.tolist()) == (2, [1, 0] * 21, [0, 1, 1])
    np.testing.assert_array_equal(words.test_x.toarray()[0], [0] * 5 + [8])
    few = factors_data.of_folder(str(tmp_path), 9, 5, 0)
    assert (few.x.shape, few.classes, set(few.y) <= {0, 1}) == ((5, 6), 2, True)


# ---- what is refused -------------------------------------------------------------------------------------------------


class Calls:
    """A pickle that makes a folder when it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_a_pickle_that_calls_a_function_is_refused_before_the_call(tmp_path: Path) -> None:
    batches(tmp_path / "cifar-10-batches-py", False)
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(pickle.dumps(Calls(tmp_path / "made"), 2))
    with pytest.raises(data.BadData, match=r"data_batch_2 is no pickled batch: it asks for posix\.mkdir, and only"):
        data.load(tmp_path, data.PICTURES)
    assert not (tmp_path / "made").exists()


PY, BIN, CSV, DAT = "cifar-10-batches-py", "cifar-10-batches-bin", "ml-latest-small", "ml-1m"
MAKE: dict[str, Callable[[Path], None]] = {
    PY: lambda folder: batches(folder / PY, False),
    BIN: lambda folder: batches(folder / BIN, True),
    CSV: lambda folder: ratings(folder / CSV, False),
    DAT: lambda folder: ratings(folder / DAT, True),
    "20news": news,
    **{f"rcv1{packed}": partial(rcv1, packed=packed) for packed in PACKED},
}
HEAD, ROW = f"{data.HEADER}\n".encode(), PIXELS[0]
WANTED = r"must be uint8 of shape \(N, 3072\)"
DAMAGED: list[tuple[str, str, bytes | None, str]] = [  # set, file, its content, error
    (PY, "data_batch_3", None, f"/{PY}: data_batch_3 is missing: CIFAR-10 for Python is from https://www.cs.toronto"),
    (PY, "data_batch_4", pickled({"data": ROW})[:-900], "is no pickled batch: .*; CIFAR-10 .* is from https://www.cs"),
    (PY, "data_batch_4", b"\x80\x02N.", "is no batch: a batch is a dict with data and labels; "),
    (PY, "data_batch_4", pickled({"data": ROW}), "is no batch: a batch is a dict with data and labels; "),
    (PY, "data_batch_4", pickled({"data": ROW[:, 1:], "labels": [0]}), rf"uint8 of shape \(4, 3071\): {WANTED}"),
    (PY, "data_batch_4", pickled({"data": ROW * 1.0, "labels": [0]}), rf"float64 of shape \(4, 3072\): {WANTED}"),
    (PY, "data_batch_4", pickled({"data": [1], "labels": [0]}), rf"pictures of list of shape \(1,\): {WANTED}"),
    (
        PY,
        "data_batch_4",
        pickled({"data": ROW, "labels": [0]}),
        "must have a label of 0 to 9 for each of its 4 pictures",
    ),
    (
        BIN,
        "test_batch.bin",
        bytes(5000),
        "has 5000 bytes: must be a multiple of 3073, .* is from https://www.cs.toronto",
    ),
    (BIN, "data_batch_1.bin", b"", rf"has pictures of uint8 of shape \(0, 3072\): {WANTED}"),
    (BIN, "data_batch_1.bin", bytes([10, *bytes(3072)]), "must have a label of 0 to 9 for each of its 1 pictures"),
    (CSV, "ratings.csv", b"1,2,3,4\n", f"begins with '1,2,3,4': must be '{data.HEADER}'; .* is from https://grouplens"),
    (CSV, "ratings.csv", HEAD + b"1,2,3,4\n1,2,3\n", "is no table of ratings: "),
    (CSV, "ratings.csv", HEAD + b"1,2,3,4\n1,2,nan,4\n", "line 3: .* are 1, 2, nan: .* 1 or more, ratings 0.5 to 5"),
    (CSV, "ratings.csv", HEAD + b"1,2,3,4\n0,2,3,4\n", "line 3: .* are 0, 2, 3: users and movies must be 1 or more"),
    (DAT, "ratings.dat", b"1::2::5.5::4\n", "line 1: user, movie and rating are 1, 2, 5.5: "),
    (DAT, "ratings.dat", b"1::two::3::4\n", "is no table of ratings: .*two"),
    (DAT, "ratings.dat", b"1::2::3\n", r"has shape \(1, 3\): must be \(N, 4\)"),
    (
        "20news",
        "20news-bydate-test/talk/1",
        b"",
        r"has 3 texts of 3 groups: must have texts of the 2 groups of .*qwone",
    ),
    (
        "rcv1",
        "rcv1_train.binary",
        None,
        "holds no data set: .* rcv1_train.binary.* of RCV1, two classes, from https://",
    ),
    ("rcv1", "rcv1_train.binary", b"", "is no svmlight file: it has no rows; RCV1, .* from https://.*libsvmtools"),
    ("rcv1", "rcv1_test.binary", b"words\n", "is no svmlight file: .* from https://.*libsvmtools"),
    ("rcv1.xz", "rcv1_train.binary.xz", b"words", "is no svmlight file: .*libsvmtools"),
    (
        "rcv1.gz",
        "rcv1_train.binary.gz",
        gzip.compress(b"1 1:1")[:10] + b"\xff" * 20,
        "is no svmlight file: .*libsvmtools",
    ),
    *(
        (f"rcv1{packed}", f"rcv1_train.binary{packed}", pack(MORE.encode())[:-9], "is no svmlight file: .*libsvmtools")
        for packed, pack in PACKED.items()
        if packed
    ),
]


@pytest.mark.parametrize(("made", "name", "content", "told"), DAMAGED, ids=map(str, range(len(DAMAGED))))
def test_damaged_and_missing_files_are_named(
    made: str, name: str, content: bytes | None, told: str, tmp_path: Path
) -> None:
    MAKE[made](tmp_path)
    kind = data.PICTURES if made in (PY, BIN) else data.RATINGS if made in (CSV, DAT) else data.ROWS
    file = tmp_path / (made if kind != data.ROWS else "") / name
    file.parent.mkdir(exist_ok=True)
    file.unlink() if content is None else file.write_bytes(content)
    with pytest.raises(data.BadData, match=told) as raised:
        data.load(tmp_path, kind)
    assert str(tmp_path) in str(raised.value)
    assert name.partition("/")[0] in str(raised.value)


def test_a_folder_must_hold_one_whole_set(tmp_path: Path) -> None:
    with pytest.raises(
        data.BadData, match=r"holds no data set: it must hold one of data_batch_1 of CIFAR-10 for Python, "
    ):
        data.load(tmp_path, data.PICTURES)
    MAKE[PY](tmp_path)
    MAKE[BIN](tmp_path)
    told = f"holds several data sets: CIFAR-10 for Python in {tmp_path}/{PY}, CIFAR-10, binary version in"
    with pytest.raises(data.BadData, match=told):
        data.load(tmp_path, data.PICTURES)
    (tmp_path / PY / "data_batch_3").unlink()
    (tmp_path / PY / "data_batch_3").mkdir()
    with pytest.raises(data.BadData, match=r"Is a directory: .*data_batch_3'; CIFAR-10 for Python is from https://"):
        data.load(tmp_path / PY, data.PICTURES)
    news(tmp_path)
    (tmp_path / data.NEWS[1]).rename(tmp_path / "else")
    with pytest.raises(data.BadData, match=r"20news-bydate-test is missing: 20 Newsgroups is from http://qwone\.com"):
        data.load(tmp_path, data.ROWS)


def test_scikit_learn_s_absence_tells_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rcv1(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(data.BadData, match="these data need: pip install scikit-learn"):
        data.rows(tmp_path, 9)


def test_every_rank_hears_that_one_cannot_read(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    batches(tmp_path / "here" / "cifar-10-batches-py", False)

    def body(ctx: hpcomm.Context) -> list[str]:
        folder = tmp_path / ("here" if ctx.rank == 0 else "there")
        with pytest.raises(data.BadData) as of_pictures:
            flow_data.on_every_rank(ctx, lambda: flow_data.pictures(0, str(folder)))
        with pytest.raises(data.BadData) as of_rows:
            factors_data.share(ctx, lambda: factors_data.of_folder(str(folder), 9, None, 0))
        return [str(of_pictures.value), str(of_rows.value)]

    for pictures, rows in run_threads(2, body):
        assert re.match(rf"rank 1: {tmp_path}/there is no folder: it must hold one of data_batch_1", pictures)
        assert rows.startswith(f"{tmp_path}/here holds no data set: it must hold one of 20news-bydate-train of 20")


# ---- the trainings ---------------------------------------------------------------------------------------------------

FLOW = "--size small --steps 2 --batch 2 --every 1 --eta 0.01"
FACTORS = "--steps 2 --pairs 2 --every 1 --features 64"
TRAININGS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "flow_lr": (news, FLOW, "softmax regression, 20 Newsgroups: 2048 parameters"),
    "flow_mf": (
        lambda folder: ratings(folder / "ml-1m", True),
        f"{FLOW} --latent 3 --batch 1",
        "MovieLens, 3 ratings: 18 ",
    ),
    "flow_cnn": (
        lambda folder: batches(folder / "cifar-10-batches-bin", True),
        FLOW,
        "convolutional network, CIFAR-10: ",
    ),
    "factors_mlr": (news, FACTORS, "multiclass logistic regression, 20 Newsgroups: W is 64 x 2"),
    "factors_sdca": (rcv1, FACTORS, "RCV1, two classes: W is 2 x 2"),
    "factors_dml": (news, f"{FACTORS} --latent 4 --samples 20", "20 Newsgroups: W is 4 x 64"),
    "text_svm": (rcv1, "--epochs 1 --period 10", "RCV1, two classes: 1 x 40 rows, 3 weights, 40 tests"),
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", list(TRAININGS))
def test_trainings_take_the_data_of_a_folder(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if name == "flow_cnn":
        pytest.importorskip("torch")
    make, options, told = TRAININGS[name]
    make(tmp_path)
    program: Any = importlib.import_module(f"train_{name}")
    more = ["--plot", str(tmp_path / "plot.png")] if name == "text_svm" else []
    ended = CliRunner().invoke(program.main, [*options.split(), *more, "--data", str(tmp_path)])
    said = ended.output + capfd.readouterr().out
    assert ended.exit_code == 0, (said, ended.exception)
    assert told in said.partition("\n")[0]
    ended = CliRunner().invoke(program.main, [*options.split(), "--data", str(tmp_path / "none")])
    assert ended.exit_code == 2
    assert f"{tmp_path}/none is no folder: it must hold one of" in ended.output + capfd.readouterr().err


def test_pictures_of_the_benchmarks_are_those_of_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    training: Any = importlib.import_module("bench.poseidon.training")
    batches(tmp_path / "cifar-10-batches-py", False)
    images = training.Images.load(0, str(tmp_path))
    np.testing.assert_array_equal(images.x.reshape(5, EACH, 3072), PIXELS[:5])
    np.testing.assert_array_equal(images.of(images.test_x[:2]), data.standard(images.test_x[:2].numpy()))
    digits = training.Images.load(0, None)
    assert digits.of(digits.x) is digits.x
