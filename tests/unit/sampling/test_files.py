"""Records in files are read when they are drawn, and only if they are sound."""

import io
import os
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import DamagedRecordsError
from keras_dp.sampling import PoissonBatches
from keras_dp.sampling.array_shards import ArrayShards
from keras_dp.sampling.record_files import RecordFile
from keras_dp.sampling.tfrecord_shards import TFRecordShards

SEED = 11


def payload(index):
    """Bytes that say which record they are; lengths from 8 to 608."""
    return index.to_bytes(8, "little") + bytes(index % 7 * 100)


def parse(serialized):
    heads = [each[:8] for each in serialized]
    return {
        "id": np.frombuffer(b"".join(heads), np.int64).copy(),
        "size": np.array([len(each) for each in serialized]),
    }


def written(folder, counts):
    """Writes TFRecord files of consecutive records."""
    paths, index = [], 0
    for shard, count in enumerate(counts):
        paths.append(str(folder / f"s-{shard}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for _ in range(count):
                writer.write(payload(index))
                index += 1
    return paths


def everything(source):
    return source[np.arange(len(source))]


def touched_later(path):
    """Moves the time of change: a file system's clock may be coarse."""
    stat = os.stat(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 10**9))


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def tfrecord_source(folder):
    paths = written(folder, [30, 30])
    return TFRecordShards(paths, parse=parse), paths[1]


def array_source(folder):
    paths = [str(folder / f"{i}.npy") for i in range(2)]
    for path in paths:
        np.save(path, np.ones([30, 4]))
    return ArrayShards(paths), paths[1]


class TestTFRecordShards:
    @pytest.mark.parametrize("counts", [[100], [3, 0, 1, 40], [0, 5, 0]])
    def test_records_are_those_of_tensorflow_in_their_order(
        self, tmp_path, counts
    ):
        paths = written(tmp_path, counts)
        source = TFRecordShards(paths, parse=parse)

        records = everything(source)

        assert len(source) == sum(counts)
        assert source.paths == tuple(paths)
        np.testing.assert_array_equal(records["id"], np.arange(sum(counts)))
        read = [x.numpy() for x in tf.data.TFRecordDataset(paths)]
        assert source.serialized(np.arange(len(source))) == read

    def test_any_increasing_indices(self, tmp_path):
        source = TFRecordShards(written(tmp_path, [9, 9, 9]), parse=parse)

        for indices in ([0], [26], [8, 9], [0, 8, 9, 17, 18, 26], [12]):
            assert source[np.array(indices)]["id"].tolist() == indices

    @pytest.mark.parametrize("make", [tfrecord_source, array_source])
    @pytest.mark.parametrize(
        ("indices", "error", "received"),
        [
            ([-1], ValueError, "an index out of this range"),
            ([60], ValueError, "an index out of this range"),
            (np.uint64([2**63]), ValueError, "an index out of this range"),
            ([2, 2], ValueError, "indices that do not increase"),
            ([3, 1], ValueError, "indices that do not increase"),
            # Their difference does not fit 64 bits.
            ([5, -(2**63), 7], ValueError, "indices that do not increase"),
            ([[1]], ValueError, r"shape \(1, 1\)"),
            (1, ValueError, r"shape \(\)"),
            ([0.5], TypeError, "dtype float64"),
            ([True], TypeError, "dtype bool"),
            ([2**70], TypeError, "dtype object"),
            (["1"], TypeError, "dtype <U1"),
            (None, TypeError, "dtype object"),
        ],
    )
    def test_other_indices_are_refused(
        self, tmp_path, make, indices, error, received
    ):
        source, _ = make(tmp_path)
        rule = (
            r"^`indices` must be a vector of increasing integers in "
            rf"\[0, 60\)\. Received: {received}\.$"
        )

        with pytest.raises(error, match=rule):
            source[indices if indices is None else np.array(indices)]

    def test_a_path_of_bytes(self, tmp_path):
        (path,) = written(tmp_path, [5])

        source = TFRecordShards(os.fsencode(path), parse=parse)

        assert source.paths == (path,)
        assert everything(source)["id"].tolist() == list(range(5))

    def test_records_longer_than_what_is_scanned_at_once(self, tmp_path):
        path = str(tmp_path / "long")
        sizes = [2**18 - 16, 2**18 - 15, 5, 10**6, 2**18 - 13, 0, 2**18]
        with tf.io.TFRecordWriter(path) as writer:
            for size in sizes:
                writer.write(bytes(size))

        source = TFRecordShards(
            path, parse=lambda s: np.array([len(each) for each in s])
        )

        assert everything(source).tolist() == sizes

    def test_poisson_samples_by_a_parser_of_tensorflow(self, tmp_path):
        path = str(tmp_path / "examples")
        with tf.io.TFRecordWriter(path) as writer:
            for index in range(400):
                feature = tf.train.Feature(
                    float_list=tf.train.FloatList(value=[index, -index])
                )
                features = tf.train.Features(feature={"x": feature})
                example = tf.train.Example(features=features)
                writer.write(example.SerializeToString())

        @tf.function
        def parsed(serialized):
            spec = {"x": tf.io.FixedLenFeature([2], tf.float32)}
            return tf.io.parse_example(serialized, spec)["x"]

        def batch(data):
            batches = PoissonBatches(data, sampling_probability=0.1, seed=SEED)
            return next(iter(batches))

        source = TFRecordShards(path, parse=lambda s: parsed(tf.constant(s)))
        index = np.arange(400, dtype=np.float32)

        ours, expected = batch(source), batch(np.stack([index, -index], 1))
        np.testing.assert_array_equal(ours.records, expected.records)
        np.testing.assert_array_equal(ours.mask, expected.mask)

    def test_a_parser_that_changes_shapes_is_refused(self, tmp_path):
        source = TFRecordShards(
            written(tmp_path, [9]),
            parse=lambda s: np.zeros([len(s), 1 + (len(s) > 1)]),
        )
        batches = PoissonBatches(source, sampling_probability=1.0)

        with pytest.raises(ValueError, match="first record"):
            next(iter(batches))


class TestDamage:
    """Every kind is an error that names the file and the offset."""

    # Record 1 of `written` starts behind record 0: 16 + 8 bytes.
    OFFSET = 24

    @pytest.mark.parametrize("byte", [0, 7, 8, 11])
    def test_of_a_length_is_found_by_the_scan(self, tmp_path, byte):
        (path,) = written(tmp_path, [5])
        overwrite(path, self.OFFSET + byte, b"\xfe")

        with pytest.raises(
            DamagedRecordsError, match=rf"offset 24 of {path} has a length"
        ):
            TFRecordShards(path, parse=parse)

    @pytest.mark.parametrize("byte", [12, 19, 119, 120, 123])
    def test_of_data_or_checksum_is_found_when_it_is_read(self, tmp_path, byte):
        (path,) = written(tmp_path, [5])
        overwrite(path, self.OFFSET + byte, b"\xfe")
        source = TFRecordShards(path, parse=parse)

        assert source[np.array([0, 2, 3, 4])]["id"].tolist() == [0, 2, 3, 4]
        with pytest.raises(
            DamagedRecordsError, match=rf"offset 24 of {path} does not"
        ):
            source[np.array([0, 1, 2])]

    @pytest.mark.parametrize("size", [1, 11, 12, 23, 25, 100, 147])
    def test_a_file_that_was_cut_off_before(self, tmp_path, size):
        (path,) = written(tmp_path, [2])
        os.truncate(path, size)

        with pytest.raises(
            DamagedRecordsError, match=rf"{path} ends within the record at"
        ):
            TFRecordShards(path, parse=parse)

    def test_a_compressed_file(self, tmp_path):
        path = str(tmp_path / "zipped")
        with tf.io.TFRecordWriter(path, "GZIP") as writer:
            for index in range(9):
                writer.write(payload(index))

        with pytest.raises(DamagedRecordsError, match="the file compressed"):
            TFRecordShards(path, parse=parse)

    def test_a_message_never_holds_data(self, tmp_path):
        path = str(tmp_path / "secret")
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(b"Ada has a cold")
        overwrite(path, 14, b"!")
        source = TFRecordShards(path, parse=parse)

        with pytest.raises(DamagedRecordsError, match="offset 0") as caught:
            everything(source)
        assert "cold" not in str(caught.value)

    def test_files_that_are_missing(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="nothing-here"):
            TFRecordShards([tmp_path / "nothing-here"], parse=parse)
        with pytest.raises(ValueError, match="at least one file"):
            TFRecordShards([], parse=parse)

    @pytest.mark.parametrize(
        ("paths", "error", "message"),
        [
            ("a\0b", ValueError, "`path` must not hold a null character"),
            (b"a\0b", ValueError, "`path` must not hold a null character"),
            ([None], TypeError, "`path` must be a path. Received: path=None"),
            (7, TypeError, "`paths` must be a path or a list .* paths=7"),
        ],
    )
    def test_paths_that_are_none(self, paths, error, message):
        with pytest.raises(error, match=message):
            TFRecordShards(paths, parse=parse)

    def test_what_is_no_regular_file(self, tmp_path):
        """A pipe would be waited for without end."""
        os.mkfifo(tmp_path / "pipe")

        for path in (tmp_path / "pipe", tmp_path):
            with pytest.raises(DamagedRecordsError, match="a regular file"):
                TFRecordShards(path, parse=parse)

    def test_no_parser(self, tmp_path):
        with pytest.raises(TypeError, match="`parse` must"):
            TFRecordShards(written(tmp_path, [1]), parse=None)


def cut(path):
    os.truncate(path, os.stat(path).st_size - 1)


def appended(path):
    with open(path, "ab") as file:
        file.write(b"0")


def rewritten(path):
    overwrite(path, 200, b"1")
    touched_later(path)


def exchanged(path):
    with open(path, "rb") as file:
        data = file.read()
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    stat = os.stat(path)
    os.utime(f"{path}.new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(f"{path}.new", path)


CHANGES = [cut, appended, rewritten, exchanged, os.remove]


def mapped_source(folder):
    path = str(folder / "whole.npy")
    np.save(path, np.ones([30, 4]))
    return (np.load(path, mmap_mode="r"), np.arange(30)), path


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [tfrecord_source, array_source, mapped_source])
def test_a_file_that_changes_in_use_is_an_error_that_names_it(
    tmp_path, make, change
):
    source, path = make(tmp_path)
    batches = iter(PoissonBatches(source, sampling_probability=1.0))
    next(batches)

    change(path)

    with pytest.raises(OSError, match=path):
        next(batches)


class TestArrayShards:
    def test_nests_of_files_go_on_from_shard_to_shard(self, tmp_path):
        ids, shards = np.arange(60), []
        for i, part in enumerate(np.split(ids, [7, 7, 40])):
            x, y = str(tmp_path / f"x{i}.npy"), str(tmp_path / f"y{i}.npy")
            np.save(x, (part[:, None] * np.ones((1, 3))).astype(">f4"))
            np.save(y, part)
            shards.append({"x": x, "y": (y,)})

        source = ArrayShards(shards)

        assert (len(source), source.shards) == (60, 4)
        chosen = np.array([0, 6, 7, 39, 40, 59])
        records = source[chosen]
        np.testing.assert_array_equal(records["x"][:, 2], chosen)
        np.testing.assert_array_equal(records["y"][0], chosen)
        batches = PoissonBatches(source, sampling_probability=1.0)
        drawn, mask, _ = next(iter(batches))
        np.testing.assert_array_equal(np.sort(drawn["y"][0][mask]), ids)
        np.testing.assert_array_equal(drawn["x"][mask, 1], drawn["y"][0][mask])
        assert drawn["x"].dtype == np.float32
        assert drawn["x"].dtype.isnative

    def test_more_files_than_descriptors(self, tmp_path):
        import resource

        paths = [str(tmp_path / f"{i}.npy") for i in range(80)]
        for i, path in enumerate(paths):
            np.save(path, np.full([2], i))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
        try:
            records = everything(ArrayShards(paths))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

        np.testing.assert_array_equal(records, np.repeat(np.arange(80), 2))

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ([np.zeros([3, 2]), np.zeros([3, 3])], "equal shape and dtype"),
            ([np.zeros(3), np.zeros(3, int)], "equal shape and dtype"),
            ([np.zeros([3, 2], order="F")], "C order"),
            ([np.float64(1)], "one entry a record"),
            ([np.array([None])], "[Oo]bject"),
        ],
    )
    def test_files_that_do_not_fit_are_refused(self, tmp_path, arrays, message):
        paths = [str(tmp_path / f"{i}.npy") for i in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)

        with pytest.raises(ValueError, match=message):
            ArrayShards(paths)

    @pytest.mark.parametrize(
        "shape",
        ["(-1,)", "(True,)", "(2**9,)", f"({10**30},)", "(" * 40, "-" * 9000],
    )
    def test_headers_that_are_damaged_are_refused(self, tmp_path, shape):
        header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}"
        path = tmp_path / "x.npy"
        length = len(header).to_bytes(2, "little")
        path.write_bytes(b"\x93NUMPY\1\0" + length + header.encode())

        with pytest.raises(ValueError, match=rf"sound \.npy files, .* {path}"):
            ArrayShards([path])

    @pytest.mark.parametrize("content", [b"", b"\x93NUM", b"PK\3\4", b"\x80"])
    def test_other_files_are_refused(self, tmp_path, content):
        path = tmp_path / "x.npy"
        path.write_bytes(content)

        with pytest.raises(ValueError, match=r"sound \.npy files"):
            ArrayShards([path])

    def test_files_of_unequal_length_in_one_shard_are_refused(self, tmp_path):
        for name, size in (("x", 3), ("y", 4)):
            np.save(tmp_path / f"{name}.npy", np.zeros(size))

        with pytest.raises(ValueError, match="equal length"):
            ArrayShards([(tmp_path / "x.npy", tmp_path / "y.npy")])

    @pytest.mark.parametrize("shards", [[], "x.npy"])
    def test_no_list_of_shards_is_refused(self, shards):
        with pytest.raises(ValueError, match="`shards` must be a list"):
            ArrayShards(shards)


@pytest.mark.parametrize(
    "array",
    [
        lambda big: big,
        lambda big: big.view(">f8"),
        lambda big: big[::2],
        lambda big: big.T[: 10**4].T,
    ],
    ids=["contiguous", "big endian", "every other", "columns"],
)
def test_a_batch_costs_what_it_holds_however_the_array_lies(tmp_path, array):
    """A copy of the 160 MB that the sparse file pretends to hold is seen."""
    big = np.memmap(tmp_path / "big", np.float64, "w+", shape=(1000, 20_000))
    data = array(big)
    batches = iter(
        PoissonBatches(
            data,
            sampling_probability=1e-3,
            physical_batch_size=8,
            seed=SEED,
        )
    )

    tracemalloc.start()
    try:
        next(batches)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # Twice the batch, and the rows that fancy indexing makes first.
    assert peak < 3 * 8 * data[0].nbytes


class TestPartsOfFiles:
    def file(self, folder):
        path = folder / "file"
        path.write_bytes(bytes(range(200)))
        return RecordFile(path)

    def parts(self, file):
        rows = np.zeros([2, 50], np.uint8)
        starts = np.array([3, 150])
        file.read_into([row.data for row in rows], starts)
        return file.read(starts, np.array([50, 50])), rows

    def test_are_read_on_where_a_call_returns_less(self, tmp_path, monkeypatch):
        """As it may be interrupted, or limited by a file system."""
        file, calls = self.file(tmp_path), []
        expected, _ = self.parts(file)

        class Interrupted(io.FileIO):
            def read(self, size):
                calls.append(size)
                return super().read(min(size, 7))

            def readinto(self, row):
                return 0

        monkeypatch.setattr(
            "keras_dp.sampling.record_files.open",
            lambda path, mode, buffering: Interrupted(path, mode),
            raising=False,
        )

        read, rows = self.parts(file)

        assert len(calls) > len(expected)
        assert read == expected
        assert [row.tobytes() for row in rows] == expected
        assert expected[1] == bytes(range(150, 200))

    def test_are_never_shorter_than_asked_for(self, tmp_path):
        """Also if the file was as long when it was looked at last."""
        file = self.file(tmp_path)

        with pytest.raises(OSError, match="50 bytes"):
            file.read(np.array([151]), np.array([50]))

    def test_are_not_trusted_if_the_file_changes_meanwhile(
        self, tmp_path, monkeypatch
    ):
        file, part = self.file(tmp_path), RecordFile._part

        def disturbed(*arguments):
            touched_later(file.path)
            return part(*arguments)

        monkeypatch.setattr(RecordFile, "_part", disturbed)

        with pytest.raises(OSError, match="must not change"):
            file.read(np.array([0]), np.array([9]))

    def test_leave_no_descriptor_open(self, tmp_path):
        file = self.file(tmp_path)
        before = len(os.listdir("/proc/self/fd"))

        self.parts(file)
        with pytest.raises(OSError, match="ends within"):
            file.read(np.array([199]), np.array([2]))
        cut(file.path)
        with pytest.raises(OSError, match="must not change"):
            file.read(np.array([0]), np.array([2]))

        assert len(os.listdir("/proc/self/fd")) == before
