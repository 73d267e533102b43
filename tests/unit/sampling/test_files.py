"""Records in files are read when they are drawn, and only if they are sound."""

import io
import os
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import DamagedRecordsError
from keras_dp.sampling import PoissonBatches
from keras_dp.sampling.record_files import RecordFile, TFRecordShards

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


class TestTFRecordShards:
    @pytest.mark.parametrize("counts", [[100], [3, 0, 1, 40], [0, 5, 0]])
    def test_records_are_those_of_tensorflow_in_order(self, tmp_path, counts):
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
@pytest.mark.parametrize("make", [tfrecord_source, mapped_source])
def test_a_file_that_changes_in_use_is_an_error_that_names_it(
    tmp_path, make, change
):
    source, path = make(tmp_path)
    batches = iter(PoissonBatches(source, sampling_probability=1.0))
    next(batches)

    change(path)

    with pytest.raises(OSError, match=path):
        next(batches)


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
            data, sampling_probability=1e-3, physical_batch_size=8, seed=SEED
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
        return file.read(np.array([3, 150]), np.array([50, 50]))

    def test_are_read_on_where_a_call_returns_less(self, tmp_path, monkeypatch):
        """As it may be interrupted, or limited by a file system."""
        file, calls = self.file(tmp_path), []
        expected = self.parts(file)

        class Interrupted(io.FileIO):
            def read(self, size):
                calls.append(size)
                return super().read(min(size, 7))

        monkeypatch.setattr(
            "keras_dp.sampling.record_files.open",
            lambda path, mode, buffering: Interrupted(path, mode),
            raising=False,
        )

        read = self.parts(file)

        assert len(calls) > len(expected)
        assert read == expected
        assert expected[1] == bytes(range(150, 200))

    def test_are_never_shorter_than_asked_for(self, tmp_path):
        """Also if the file was as long when it was looked at last."""
        file = self.file(tmp_path)

        with pytest.raises(OSError, match="50 bytes"):
            file.read(np.array([151]), np.array([50]))

    def test_are_not_trusted_if_the_file_changes(self, tmp_path, monkeypatch):
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
