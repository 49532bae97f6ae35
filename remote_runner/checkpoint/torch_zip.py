"""The zip archive that a PyTorch checkpoint is: how ours is laid out, and what must hold for any.

    header data.pkl header byteorder header version header data/0 … directory end "remote-run-checkpoint/1"

A `.pt` file is an uncompressed zip (torch.save's form since 1.6). Ours is written by this module rather than by
torch, because torch's reader checks no CRC and its writer is half as fast. The layout is a function of the members'
names, sizes and CRCs, so a check can lay it out again and compare every byte that no CRC covers.

Not here: what the pickle inside may contain (torch_scan.py), writing to disk (torch_file.py). Standard library only.
Source: APPNOTE.TXT 6.3.10 (PKWARE), sections 4.3 and 4.5.3.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, List, Sequence, Tuple

FORMAT = "remote-run-checkpoint/1"
ALIGNMENT_BYTES = 64  # what torch aligns storages to, so that its mmap loading works
CHUNK_BYTES = 4 << 20
ARCHIVE = "archive"
_LIMIT = 0xFFFFFFFF
_DOS_TIME, _DOS_DATE = 0, 0x21  # midnight, 1 January 1980: a file's bytes depend on its content alone
_UTF8_FLAG = 0x0800
# what zipfile raises for what is no archive; RuntimeError: an encrypted member, or one in a form it does not know
UNREADABLE_ZIP = (zipfile.BadZipFile, EOFError, RuntimeError, OverflowError, UnicodeDecodeError, struct.error)


class CheckpointCorrupt(ValueError):
    """A checkpoint's bytes are not what a checkpoint's bytes must be."""


@dataclass(frozen=True)
class Member:
    """One stored member of an archive: its name, size in bytes and CRC-32."""

    name: str
    size_bytes: int
    crc: int


def local_header(member: Member, offset: int) -> bytes:
    """Return the bytes before a member's data; their end is aligned to 64 bytes in the file.

    Args:
        member: what follows.
        offset: where in the file these bytes will stand.
    """
    name = member.name.encode("utf-8")
    large = member.size_bytes >= _LIMIT
    extra = struct.pack("<HHQQ", 1, 16, member.size_bytes, member.size_bytes) if large else b""
    start = offset + 30 + len(name) + len(extra) + 4  # 4: head of the padding field
    padding = -start % ALIGNMENT_BYTES
    extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding  # torch's own name for this field
    size = _LIMIT if large else member.size_bytes
    head = struct.pack("<4s5H3I2H", b"PK\3\4", 45 if large else 20, _UTF8_FLAG, 0, _DOS_TIME, _DOS_DATE,
                       member.crc, size, size, len(name), len(extra))  # fmt: skip
    return head + name + extra


def directory(members: Sequence[Tuple[Member, int]], offset: int) -> bytes:
    """Return the central directory and the end record for members at their header offsets.

    Args:
        members: each with the offset of its local header.
        offset: where in the file these bytes will stand.
    """
    entries = b"".join(_entry(member, at) for member, at in members)
    count, large = len(members), offset >= _LIMIT or len(members) >= 0xFFFF
    comment = FORMAT.encode()
    end = b""
    if large:
        end += struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(entries), offset)
        end += struct.pack("<4sIQI", b"PK\6\7", 0, offset + len(entries), 1)
    short_count, short_offset = (0xFFFF, _LIMIT) if large else (count, offset)
    end += struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, short_count, short_count, len(entries), short_offset, len(comment))
    return entries + end + comment


def _entry(member: Member, at: int) -> bytes:
    name = member.name.encode("utf-8")
    large = member.size_bytes >= _LIMIT or at >= _LIMIT
    size, offset = (_LIMIT, _LIMIT) if large else (member.size_bytes, at)
    extra = struct.pack("<HHQQQ", 1, 24, member.size_bytes, member.size_bytes, at) if large else b""
    version = 45 if large else 20
    head = struct.pack("<4s6H3I5H2I", b"PK\1\2", version, version, _UTF8_FLAG, 0, _DOS_TIME, _DOS_DATE,
                       member.crc, size, size, len(name), len(extra), 0, 0, 0, 0, offset)  # fmt: skip
    return head + name + extra


def check_archive(path: Path) -> List[Member]:
    """Check an archive's structure and every member's CRC, in constant memory.

    Returns:
        Its members, in the order of their offsets.

    Raises:
        CheckpointCorrupt: cut, overlapping, doubled, compressed or changed, with the member's name.
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                infos = stored_members(path, archive)
                comment, start_dir = archive.comment, archive.start_dir
        except UNREADABLE_ZIP as error:
            raise CheckpointCorrupt(f"{path}: not a whole zip archive ({error})") from None
        members: List[Member] = []
        end = 0
        for info in infos:
            if info.header_offset < end:
                raise CheckpointCorrupt(f"{path}: the member {info.filename} overlaps the one before it")
            end = _check_member(path, file, info)
            members.append(Member(info.filename, info.file_size, info.CRC))
        if end > start_dir:
            raise CheckpointCorrupt(f"{path}: the member {members[-1].name} runs into the directory")
        _check_end(path, file, infos, start_dir)
        if comment not in (b"", FORMAT.encode()):
            raise CheckpointCorrupt(f"{path}: an archive comment that PyTorch never writes: {comment[:40]!r}")
        if comment:
            check_layout(path, file, [(m, i.header_offset) for m, i in zip(members, infos)])
    return members


def stored_members(path: Path, archive: zipfile.ZipFile) -> List[zipfile.ZipInfo]:
    """List an archive's members by their offsets; refuses doubled and compressed ones, and impossible places."""
    seen = set()
    for info in archive.infolist():
        if info.filename in seen:
            raise CheckpointCorrupt(f"{path}: the member {info.filename} stands in it twice")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise CheckpointCorrupt(f"{path}: the member {info.filename} is compressed; PyTorch never writes it so")
        if not 0 <= info.header_offset <= archive.start_dir - info.file_size:
            raise CheckpointCorrupt(f"{path}: the member {info.filename} lies outside of the file")
        seen.add(info.filename)
    return sorted(archive.infolist(), key=lambda info: info.header_offset)


def _check_member(path: Path, file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Read one member through; returns the offset of its end."""
    file.seek(info.header_offset)
    head = file.read(30)
    if len(head) < 30 or head[:4] != b"PK\3\4":
        raise CheckpointCorrupt(f"{path}: no header before the member {info.filename}")
    flags, method = struct.unpack_from("<2H", head, 6)
    crc, size = struct.unpack_from("<2I", head, 14)
    name_bytes, extra_bytes = struct.unpack_from("<2H", head, 26)
    name = file.read(name_bytes)
    said = [(crc, size), (info.CRC, info.file_size), (info.CRC, _LIMIT)]
    known = said[0] in said[1:] or (flags & 8 and said[0] == (0, 0))  # 8: sizes and CRC stand behind the data instead
    if name != info.orig_filename.encode("utf-8", "replace") or method != 0 or flags != info.flag_bits or not known:
        raise CheckpointCorrupt(f"{path}: header and directory disagree about the member {info.filename}")
    file.seek(extra_bytes, os.SEEK_CUR)
    seen, left = 0, info.file_size
    while left:
        chunk = file.read(min(left, CHUNK_BYTES))
        if not chunk:
            raise CheckpointCorrupt(f"{path}: the member {info.filename} is cut off, {left} bytes are missing")
        seen, left = zlib.crc32(chunk, seen), left - len(chunk)
    if seen != info.CRC:
        raise CheckpointCorrupt(f"{path}: the member {info.filename} was changed (CRC {seen:08x}, not {info.CRC:08x})")
    return file.tell()


def _check_end(path: Path, file: BinaryIO, infos: Sequence[zipfile.ZipInfo], start: int) -> None:
    """Hold the records behind the directory to what is there; zipfile itself forgives them a great deal."""
    size = sum(46 + len(i.orig_filename.encode()) + len(i.extra) + len(i.comment) for i in infos)
    file.seek(start + size)
    tail = file.read((1 << 16) + 200)
    said: List[Tuple[object, object]] = []  # what a field says, what it must say
    try:
        if tail[:4] == b"PK\6\6":
            record_bytes, *_, count, total, length, offset = struct.unpack_from("<Q2H2I4Q", tail, 4)
            locator, place = struct.unpack_from("<4s4xQ", tail, 56)
            said += [(count, len(infos)), (total, len(infos)), (length, size), (offset, start), (record_bytes, 44)]
            said += [(locator, b"PK\6\7"), (place, start + size)]
            tail = tail[76:]
        mark, disk, first, count, total, length, offset, comment = struct.unpack("<4s4H2IH", tail[:22])
    except struct.error:
        raise CheckpointCorrupt(f"{path}: cut off behind its directory") from None
    said += [(mark, b"PK\5\6"), (disk, 0), (first, 0), (comment, len(tail) - 22)]
    said += [(n, len(infos)) for n in (count, total) if n != 0xFFFF]
    said += [(n, want) for n, want in ((length, size), (offset, start)) if n != _LIMIT]
    if any(have != want for have, want in said):
        raise CheckpointCorrupt(f"{path}: its end record does not fit the directory before it")


def check_layout(path: Path, file: BinaryIO, placed: Sequence[Tuple[Member, int]]) -> None:
    """Compare every byte outside the members' data with what our writer would have written there."""
    position = 0
    for member, at in placed:
        header = local_header(member, position)
        file.seek(position)
        if at != position or file.read(len(header)) != header:
            raise CheckpointCorrupt(f"{path}: the bytes before the member {member.name} were changed")
        position += len(header) + member.size_bytes
    tail = directory(placed, position)
    file.seek(position)
    if file.read(len(tail) + 1) != tail:
        raise CheckpointCorrupt(f"{path}: the directory at byte {position} was changed")
