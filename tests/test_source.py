"""What a path holds: files, folders, archives, standard input; and hostile ones."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import os
import random
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_files import shared_data
from strategies import PROPERTY

from commsched.models import InputError
from commsched.problems.profiler.chrome_trace import read_chrome_trace
from commsched.problems.sources import tar_archive, trace_bytes, zip_archive
from commsched.problems.sources.source import START_BYTES, Source, sources

FILES = {
    "run/rank10.json": b'{"rank": 10}',
    "run/rank9.json": b'{"rank": 9}',
    "run/deep/er/rank1.json": b'{"rank": 1}' * 400,
}
SORTED = ["run/deep/er/rank1.json", "run/rank9.json", "run/rank10.json"]


def tar(files=FILES, mode="w:gz", form=tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=form) as target:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(files=FILES, method=zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as target:
        for name, data in files.items():
            target.writestr(name, data)
    return out.getvalue()


ARCHIVES = {
    "tar": tar(mode="w"),
    "tar.gz": tar(),
    "gnu": tar(form=tarfile.GNU_FORMAT),
    "ustar": tar(form=tarfile.USTAR_FORMAT),
    "zip": zipped(),
    "stored zip": zipped(method=zipfile.ZIP_STORED),
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def shown(found: list[Source]) -> list[str]:
    return [source.member for source in found]


def refusal(path: Path | str) -> str:
    """Return the one line that says why nothing can be read, all members included."""
    with pytest.raises(InputError) as caught:
        [source.read() for source in sources(path)]
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", ARCHIVES)
def test_the_members_of_an_archive_whatever_it_is_called(tmp_path, kind):
    """Content decides; numbers sort by value; the name is the file's with the member's."""
    path = write(tmp_path / "some.json", ARCHIVES[kind])
    found = sources(path)
    assert shown(found) == SORTED
    assert [source.read() for source in reversed(found)] == [FILES[m] for m in reversed(SORTED)]
    assert [source.read() for source in found] == [FILES[m] for m in SORTED]
    assert str(found[1]) == f"{path}: run/rank9.json"
    assert found[1].name == "rank9.json"
    assert found[1] == Source(path, "run/rank9.json")
    assert Source(path, "run/rank9.json").read() == FILES["run/rank9.json"]
    assert os.listdir(tmp_path) == ["some.json"]


def test_a_member_that_is_not_there_is_said(tmp_path):
    """A source may be made by hand."""
    path = write(tmp_path / "t.tgz", tar())
    with pytest.raises(InputError, match="holds no member 'x'"):
        Source(path, "x").read()


def test_gzip_of_a_file_is_a_file(tmp_path):
    """Only a gzip of a tar is an archive."""
    data = json.dumps({"traceEvents": []}).encode()
    for content in (gzip.compress(data), gzip.compress(data[:5]) + gzip.compress(data[5:]), data):
        path = write(tmp_path / "t.tar.gz", content)
        (source,) = sources(path)
        assert source == Source(path)
        assert source.read() == source.start() == data


def test_a_compressed_member_is_decompressed(tmp_path):
    """Ranks are often packed one by one, then put into an archive."""
    packed = {"a.json.gz": gzip.compress(b"[1]"), "b.json": b"[2]"}
    for data in (tar(packed), tar(packed, mode="w"), zipped(packed)):
        assert [s.read() for s in sources(write(tmp_path / "t", data))] == [b"[1]", b"[2]"]


def test_long_names_and_large_sizes(tmp_path):
    """Names of over 100 characters have headers of their own in both dialects."""
    name = "folder/" * 30 + "rank0.json"
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = write(tmp_path / "t", tar({name: b"{}", "z\N{SNOWMAN}": b"[]"}, form=form))
        assert shown(sources(path)) == [name, "z\N{SNOWMAN}"]


def test_gzip_of_several_parts_is_read_from_every_member(tmp_path):
    """The places of the members are remembered across the parts of the gzip data too."""
    rng = random.Random(1)
    files = {f"rank{k}": rng.randbytes(rng.randint(1, 700_000)) + b" " * 900_000 for k in range(12)}
    data = tar(files, mode="w")
    cuts = [0, 512, 513, 1_000_000, 1_000_001, 4_194_304, len(data)]
    parts = [gzip.compress(data[i:j]) for i, j in pairwise(cuts)]
    path = write(tmp_path / "t", b"".join(parts) + b"\0" * 1000)
    found = sources(path)
    for source in [*found[::-1], *found[::3]]:
        assert source.read() == files[source.member]


def test_members_are_not_reached_through_those_before_them(tmp_path, monkeypatch):
    """Reading every member decompresses the archive about once more, not once for each."""
    rng = random.Random(2)
    files = {f"rank{k:02d}": rng.randbytes(1 << 20) for k in range(30)}
    path = write(tmp_path / "t", tar(files))
    found = sources(path)
    read = 0
    original = trace_bytes.Inflater.__next__

    def counted(self):
        nonlocal read
        block = original(self)
        read += len(block)
        return block

    monkeypatch.setattr(trace_bytes.Inflater, "__next__", counted)
    for source in found:
        assert len(source.start()) == START_BYTES
        assert source.read() == files[source.member]
    assert read < 6 * sum(map(len, files.values()))


def test_hidden_files_folders_links_and_devices_are_left_out(tmp_path):
    """What macOS adds is no recording; a link leads nowhere."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as target:
        for name, kind in [
            ("./", tarfile.DIRTYPE), ("./a/._rank0", tarfile.REGTYPE), ("./.b", tarfile.REGTYPE),
            ("__MACOSX/x", tarfile.REGTYPE), ("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE),
            ("null", tarfile.CHRTYPE), ("pipe", tarfile.FIFOTYPE), ("./rank0", tarfile.REGTYPE),
        ]:  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "/etc/passwd"
            info.size = 3 if kind == tarfile.REGTYPE else 0
            target.addfile(info, io.BytesIO(b"[0]"))
    assert shown(sources(write(tmp_path / "t", out.getvalue()))) == ["./rank0"]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as target:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        target.writestr(link, "/etc/passwd")
        target.writestr("folder/", "")
        target.writestr("folder/._x", "")
        target.writestr("rank0", "[0]")
    assert shown(sources(write(tmp_path / "z", data.getvalue()))) == ["rank0"]
    only_hidden = write(tmp_path / "h", tar({".a": b"x"}))
    assert "holds no files" in refusal(only_hidden)
    assert "holds no files" in refusal(write(tmp_path / "e", zipped({})))


def test_names_that_lead_elsewhere_are_only_names(tmp_path):
    """Nothing is written where a member's name points to."""
    files = {"../../evil": b"1", "/etc/evil": b"2", "a\nb": b"3"}
    for data in (tar(files), zipped(files)):
        folder = tmp_path / "deep"
        folder.mkdir(exist_ok=True)
        found = sources(write(folder / "t", data))
        assert sorted(source.read() for source in found) == [b"1", b"2", b"3"]
        assert all(str(source).isprintable() for source in found)
        for source in found:
            with source.on_disk() as path:
                assert path.read_bytes() == source.read()
        assert not (tmp_path.parent / "evil").exists()
        assert os.listdir(folder) == ["t"]


def test_headers_that_speak_of_the_next_file(tmp_path):
    """A stated size holds for the file; what speaks of everything, or of links, is passed over."""
    size = b"10 size=3\n"
    parts = [
        header(kind=b"g", size=b"00000000003\0"), BODY, header(kind=b"L", size=b"00000000005\0"),
        b"long\0".ljust(512, b"\0"), header(kind=b"K", size=b"00000000003\0"), BODY,
        header(kind=b"x", size=b"%011o\0" % len(size)), size.ljust(512, b"\0"),
        header(size=b"77777777777\0"), BODY, header(b"b"), BODY,
    ]  # fmt: skip
    found = sources(write(tmp_path / "t", b"".join(parts)))
    assert [(s.member, s.read()) for s in found] == [("b", b"[0]"), ("long", b"[0]")]


def test_a_member_that_comes_twice_is_the_later_one(tmp_path):
    """So is it when an archive is unpacked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as target:
        for data in (b"old", b"new!"):
            info = tarfile.TarInfo("rank0")
            info.size = len(data)
            target.addfile(info, io.BytesIO(data))
    (source,) = sources(write(tmp_path / "t", out.getvalue()))
    assert source.read() == b"new!"


def test_the_files_of_a_folder(tmp_path):
    """Those in it; where there are none, those one level down."""
    for name in ("rank10.json", "rank9.json", ".hidden", "Rank2"):
        write(tmp_path / name, b"{}")
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "other.json", b"{}")
    assert [s.name for s in sources(tmp_path)] == ["Rank2", "rank9.json", "rank10.json"]
    assert [s.member for s in sources(tmp_path)] == ["", "", ""]


def test_the_files_one_level_down(tmp_path):
    """One folder for each rank; deeper ones and hidden ones are not searched."""
    for name in ("rank10", "rank2", ".git", "rank2/deeper"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "trace.json", name.encode())
    assert [s.read() for s in sources(tmp_path)] == [b"rank2", b"rank10"]


def test_an_empty_folder_and_a_folder_of_too_many(tmp_path, monkeypatch):
    """Both are refused in one line."""
    assert "holds no files" in refusal(tmp_path)
    monkeypatch.setattr("commsched.problems.sources.source.MAX_MEMBERS", 3)
    for k in range(4):
        write(tmp_path / str(k), b"x")
    assert "more than 3 files" in refusal(tmp_path)


def test_a_missing_path_and_a_bad_name(tmp_path):
    """The system's reason is in the message."""
    assert "No such file" in refusal(tmp_path / "missing")
    with pytest.raises(InputError, match="null"):
        sources("a\0b")


@pytest.mark.parametrize("kind", ["file", "gzip", "tar.gz", "zip"])
def test_standard_input(monkeypatch, kind):
    """It is read once, and may hold whatever a file may."""
    data = {"file": b"[1]", "gzip": gzip.compress(b"[1]"), **ARCHIVES}[kind]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    found = sources("-")
    if kind in ("file", "gzip"):
        assert [(str(s), s.start(), s.read(), s.read()) for s in found] == [("-", *[b"[1]"] * 3)]
        with found[0].on_disk() as path:
            assert path.read_bytes() == b"[1]"
    else:
        assert [s.read() for s in found] == [FILES[member] for member in SORTED]
        assert str(found[0]) == f"-: {SORTED[0]}"


def test_empty_standard_input(monkeypatch):
    """There is nothing to read."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert "is empty" in refusal("-")


def test_a_pipe_is_read_once(tmp_path):
    """As in ``commsched import <(zstd -dc trace.zst)``."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(tar(),))
    writer.start()
    found = sources(path)
    writer.join()
    assert [s.read() for s in found] == [FILES[member] for member in SORTED]


def test_on_disk_is_the_file_itself_or_a_copy_that_goes(tmp_path):
    """Large databases are not copied; what is compressed is, for as long as it is needed."""
    plain = write(tmp_path / "a b.sqlite", b"data")
    with Source(plain).on_disk() as path:
        assert path == plain
    for content in (gzip.compress(b"data"), tar({"x/a b.sqlite": b"data"}), zipped({"ü": b"data"})):
        (source,) = sources(write(tmp_path / "packed", content))
        with source.on_disk() as path:
            assert path.read_bytes() == b"data"
            assert path.name.isascii()
        assert not path.exists()
    with (
        pytest.raises(InputError, match="No such file"),
        Source(tmp_path / "missing").on_disk(),
    ):
        pass


def test_on_disk_without_room_is_said(tmp_path, monkeypatch):
    """The disk for temporary files may be full."""
    monkeypatch.setattr("tempfile.NamedTemporaryFile", no_room)
    source = Source(write(tmp_path / "t", gzip.compress(b"data")))
    with pytest.raises(InputError, match="temporary file: No space left"), source.on_disk():
        pass


def no_room(**_):
    raise OSError(28, "No space left on device")


def test_the_start_does_not_need_the_end(tmp_path):
    """A file is recognised although it is cut off or damaged further on."""
    data = os.urandom(3 * START_BYTES)
    packed = gzip.compress(data, 1)
    path = write(tmp_path / "t", packed)
    assert Source(path).start() == data[:START_BYTES]
    cut = Source(write(path, packed[: len(packed) // 5]))
    start = cut.start()
    assert start
    assert data.startswith(start)
    with pytest.raises(InputError, match="end early"):
        cut.read()
    with pytest.raises(InputError, match="is empty"):
        Source(write(path, b"")).start()
    with pytest.raises(InputError, match="bzip2"):
        Source(write(path, bz2.compress(b"data"))).start()


def test_a_trace_is_read_from_an_archive_and_messages_name_the_member(tmp_path):
    """The reader of traces takes a source, and says which member is damaged."""
    good = json.dumps({"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}).encode()
    path = write(tmp_path / "t", tar({"good": good, "bad": b"{}", "packed": gzip.compress(good)}))
    bad, found, packed = sources(path)
    assert [event.name for event in read_chrome_trace(found).events] == ["a"]
    assert read_chrome_trace(packed).source == packed
    assert read_chrome_trace(packed).path == path
    with pytest.raises(InputError) as caught:
        read_chrome_trace(bad)
    assert str(caught.value).startswith(f"{path}: bad: ")


def test_bombs_cost_little(tmp_path, monkeypatch):
    """A member that unpacks to 40 MiB is refused at the limit; so is an archive that does."""
    bomb = {"a": b" " * (40 << 20)}
    for data in (tar(bomb), zipped(bomb)):
        (source,) = sources(write(tmp_path / "t", data))
        tracemalloc.start()
        with pytest.raises(InputError, match=r"more than 1\.00 MiB"):
            source.read(max_text_bytes=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
        tracemalloc.stop()
    for module in (tar_archive, zip_archive):
        monkeypatch.setattr(module, "MAX_ARCHIVE_BYTES", 20 << 20)
    for data in (tar(bomb), zipped(bomb)):
        path = write(tmp_path / "t", data)
        tracemalloc.start()
        assert "more than 20.00 MiB" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
        tracemalloc.stop()


def test_too_many_members_and_headers(tmp_path, monkeypatch):
    """Both are bounded."""
    for module in (tar_archive, zip_archive):
        monkeypatch.setattr(module, "MAX_MEMBERS", 5)
    many = {f"{k}": b"" for k in range(7)}
    assert "more than 5 files" in refusal(write(tmp_path / "t", tar(many)))
    assert "more than 5 files" in refusal(write(tmp_path / "t", zipped(many)))
    monkeypatch.setattr(tar_archive, "_MAX_HEADERS", 50)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as target:
        for k in range(60):
            info = tarfile.TarInfo(f"d{k}")
            info.type = tarfile.DIRTYPE
            target.addfile(info)
    assert "more than" in refusal(write(tmp_path / "t", out.getvalue()))


def header(name=b"a", size=b"00000000003\0", kind=b"0", checksum=None) -> bytes:
    block = bytearray(name.ljust(100, b"\0") + b"0000644\0" * 3 + size + b"0" * 11 + b"\0")
    block += b" " * 8 + kind + b"\0" * 100 + b"ustar\x0000"
    block = block.ljust(512, b"\0")
    block[148:156] = b"%06o\0 " % (sum(block) if checksum is None else checksum)
    return bytes(block)


BODY = b"[0]".ljust(512, b"\0")
ENDLESS = b"\x80" + b"\xff" * 11


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header() + BODY[:2], "ends early"),
        (header() + BODY + header()[:300], "ends early"),
        (header() + BODY + header(checksum=5) + BODY, "header 1 is none"),
        (header() + BODY + b"x" * 512, "header 1 is none"),
        (header(size=b"-0000000003\0"), "header 0 is none"),
        (header(size=b"99999999999\0"), "header 0 is none"),
        (header(size=ENDLESS), "the limit"),
        (header(size=b"77777777777\0"), "ends early"),
        (header(kind=b"L", size=ENDLESS), "the limit"),
        (header(kind=b"L", size=b"00077777777\0"), "a name of 16777215 bytes"),
        (header(kind=b"x", size=b"00000001000\0") + BODY[:100], "ends early"),
        (tar({"x" * 5000: b"1"}), "a name of 5000 bytes"),
        (tar({"x" * 5000: b"1"}, form=tarfile.GNU_FORMAT), "a name of 5000 bytes"),
        (header(kind=b"5"), "holds no files"),
        (header(kind=b"S") + BODY, "a file with holes"),
        (header(kind=b"x", size=b"00000000021\0") + b"17 GNU.sparse.x=1".ljust(512, b"\0") + header(),
         "a file with holes"),
        (header(kind=b"x", size=b"00000000011\0") + b"9 size=x\n".ljust(512, b"\0") + header(),
         "header 1 is none"),
        (zipped()[:-10], "zip archive is damaged"),
        (zipped()[:40], "zip archive is damaged"),
        (b"PK\x03\x04" + b"x" * 600, "zip archive is damaged"),
        (zipped({"a": b"x" * 999}).replace(zipped({"a": b"x" * 999})[32:36], b"\xff" * 4, 1),
         "zip archive is damaged"),
        (zipped({"a": b"12345"}, zipfile.ZIP_STORED).replace(b"12345", b"12344"), "checksum"),
        (zipped({"a": b"12345" * 99}, zipfile.ZIP_BZIP2), "zip method 12"),
        (zipped({"a": b"12345" * 99}, zipfile.ZIP_LZMA), "zip method 14"),
        (gzip.compress(tar({"a": random.Random(0).randbytes(9000)}, "w"))[:-2000],
         "the gzip data end early"),
        (tar({"a": tar(mode="w")}), "a: this is a tar archive"),
        (tar({"a": b""}), "a: the file is empty"),
        (bz2.compress(tar(mode="w")), "bzip2 data"),
    ],
)  # fmt: skip
def test_damaged_archives_are_refused_in_one_line(tmp_path, content, said):
    """Whether it shows in the list of members or in reading them."""
    assert said in refusal(write(tmp_path / "t", content))


def test_an_encrypted_member_is_refused(tmp_path):
    """There is nobody to ask for the password."""
    data = bytearray(zipped({"a": b"12345"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "is encrypted" in refusal(write(tmp_path / "t", bytes(data)))


def test_an_endless_list_of_members_is_not_read(tmp_path):
    """The length of a zip file's list is bounded before anything is made of it."""
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as target:
        for k in range(1000):
            target.writestr(f"{k}" + "x" * 6000, "")
    tracemalloc.start()
    assert "its list of members has more than 4.00 MiB" in refusal(
        write(tmp_path / "t", many.getvalue())
    )
    tracemalloc.stop()


def test_countless_parts_of_gzip_are_refused(tmp_path, monkeypatch):
    """Empty parts cost time without adding to the text."""
    monkeypatch.setattr(trace_bytes, "_MOST_PARTS", 100)
    path = write(tmp_path / "t", gzip.compress(b"") * 200 + gzip.compress(b"x"))
    assert "more than 100 parts" in refusal(path)


def test_pax_headers_of_malice_end_quickly(tmp_path):
    """Long headers, wrong lengths, and chains of them."""
    hostile = [
        b"1 a=b\n" * 10_000, b"9" * 60_000, b"99999999 path=x\n", b"0 path=x\n" * 1000,
        b"12 size=zzz\n", b"30 size=99999999999999999999\n" * 3, b"1 " * 30_000,
    ]  # fmt: skip
    for data in hostile:
        block = data + b"\0" * (-len(data) % 512)
        head = header(kind=b"x", size=b"%011o\0" % len(data))
        content = (head + block) * 50 + header() + BODY
        started = time.monotonic()
        with contextlib.suppress(InputError):
            sources(write(tmp_path / "t", content))
        assert time.monotonic() - started < 5


def test_endless_headers_of_names_are_refused(tmp_path, monkeypatch):
    """All that headers say of names is bounded, too."""
    monkeypatch.setattr(tar_archive, "_MAX_RECORDS_BYTES", 2000)
    content = (header(kind=b"x", size=b"00000000003\0") + BODY) * 1000 + header() + BODY
    assert "is damaged: a name" in refusal(write(tmp_path / "t", content))


@PROPERTY
@given(st.sampled_from(sorted(ARCHIVES)), st.data())
def test_damage_anywhere_raises_nothing_but_input_errors(tmp_path_factory, kind, data):
    """Fuzzing: bytes are flipped, cut out, put in."""
    content = bytearray(ARCHIVES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "end"])):
            case "flip":
                content[at] = data.draw(st.integers(0, 255))
            case "cut":
                del content[at : at + data.draw(st.integers(0, 600))]
            case "insert":
                content[at:at] = data.draw(st.binary(max_size=20))
            case "end":
                del content[at:]
        content = content or bytearray(b"x")
    path = write(tmp_path_factory.getbasetemp() / "fuzz", bytes(content))
    with contextlib.suppress(InputError):
        for source in sources(path):
            with contextlib.suppress(InputError):
                assert source.read().startswith(source.start())


@pytest.mark.parametrize(
    ("name", "count", "total"),
    [
        ("param/dlrm_kineto.tar.gz", 8, None),
        ("param/dlrm_pytorch_et.tar.gz", 8, None),
        ("chakra/1.0.2-chakra.0.0.4.tgz", 1, 211_555),
        ("chakra/feeder_tests_trace.tar.gz", 1, 2_978_371),
        ("chakra/json_trace.tar.gz", 2, 4_938_448 + 1_753),
        ("hta/nccl_data.json.gz", 1, 9_778_890),
        ("straggler-analysis", 3, None),
    ],
)
def test_real_archives(name, count, total):
    """The members are those that the standard library finds, to the byte."""
    path = shared_data(name)
    found = sources(path)
    assert len(found) == count
    if total is not None:
        assert sum(len(source.read()) for source in found) == total
    if name.endswith(("tar.gz", "tgz")):
        with tarfile.open(path) as reference:
            for source in found:
                assert source.read() == reference.extractfile(source.member).read()


def test_a_real_trace_of_each_rank():
    """All eight ranks of a job come from one archive, in the order of their numbers."""
    found = sources(shared_data("param/dlrm_kineto.tar.gz"))
    traces = [read_chrome_trace(source) for source in found]
    ranks = [trace.metadata["distributedInfo"]["rank"] for trace in traces]
    assert ranks == list(range(8))
