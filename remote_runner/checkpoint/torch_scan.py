"""What a PyTorch file would call when it is loaded, told without loading it.

A pickle is a program. Its opcodes are listed here (never run) and every name it would import is held against the
few that tensors need; what is left over is named in the refusal: "contains code: os.system".

Not here: the zip around the pickle (torch_zip.py), loading (torch.py). Standard library only, so that a
controller without torch can say what is wrong with a file.
"""

from __future__ import annotations

import _compat_pickle  # what pickle itself translates old names with
import contextlib
import io
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Dict, List, Optional

from remote_runner.checkpoint.torch_zip import UNREADABLE_ZIP, CheckpointCorrupt, check_archive, stored_members

PICKLE_LIMIT_BYTES = 256 << 20
_OLD_PICKLE_BYTES = 1 << 20  # enough to name what a file without any mark would call; it is refused in any case
_TENSOR_NAMES = re.compile(
    r"torch\.(\w+Storage|storage\.\w+Storage|Size|device|Tensor|"
    r"(b?float|u?int|q?u?int|complex)\d+\w*|bool|half|double|float|long|short|int|"
    r"_utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter|parameter_with_state|sparse_tensor|meta_tensor_no_storage)|"
    r"_tensor\._rebuild_from_type_v2|serialization\._get_layout|nn\.parameter\.(Parameter|Buffer))"
    r"|collections\.(OrderedDict|Counter|defaultdict)|(builtins|__builtin__)\.(set|frozenset|bytearray|complex)"
    r"|_codecs\.encode"
)


class CheckpointRefused(CheckpointCorrupt):
    """The file would run code when unpickled; it was not loaded and there is no way round it."""


def check_file(path: Path, *, deep: bool = True) -> None:
    """Refuse a file that is broken or that would call anything, whatever its suffix says.

    Args:
        path: any file.
        deep: also check every CRC; not needed where a SHA-256 has proven the bytes.

    Raises:
        CheckpointRefused: the message is "contains code: NAME".
        CheckpointCorrupt: not a PyTorch file, or a broken one.
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise CheckpointCorrupt(f"{path}: no bytes")
    if start == b"PK\3\4":
        _check_zip_pickles(path, deep)
    elif start[:1] == b"\x80":
        with path.open("rb") as file:
            refuse_code(path, names_called(path, file))
    else:
        _refuse_old_pickle(path)
        raise CheckpointCorrupt(f"{path}: neither a zip archive nor a pickle, it begins with {start!r}")


def refuse_renamed_pickle(path: Path) -> None:
    """Refuse a file with another suffix that is a pickle with code in it, or an archive with one; else do nothing."""
    try:
        check_file(path, deep=False)
    except CheckpointRefused:
        raise
    except CheckpointCorrupt:
        return


def _refuse_old_pickle(path: Path) -> None:
    """A pickle of protocol 0 or 1 has no mark at its beginning; torch would read it all the same."""
    names: List[str] = []
    with path.open("rb") as file, contextlib.suppress(CheckpointCorrupt):
        names = names_called(path, io.BytesIO(file.read(_OLD_PICKLE_BYTES)))
    refuse_code(path, names)


def _check_zip_pickles(path: Path, deep: bool) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [info for info in stored_members(path, archive) if info.filename.endswith(".pkl")]
            for info in pickles:
                if info.file_size > PICKLE_LIMIT_BYTES:
                    raise CheckpointCorrupt(
                        f"{path}: {info.filename} of {info.file_size} bytes is no checkpoint's pickle"
                    )
                refuse_code(path, names_called(path, io.BytesIO(archive.read(info))))
    except UNREADABLE_ZIP as error:
        raise CheckpointCorrupt(f"{path}: not a whole zip archive ({error})") from None
    if deep:
        check_archive(path)
    if sum(info.filename.endswith("/data.pkl") for info in pickles) != 1:
        raise CheckpointCorrupt(f"{path}: a zip archive without data.pkl is no checkpoint")


def refuse_code(path: Path, names: List[str]) -> None:
    """Raise for the first name that no tensor needs."""
    for name in names:
        if not _TENSOR_NAMES.fullmatch(name):
            raise CheckpointRefused(f"{path}: contains code: {name}")


def names_called(path: Path, file: BinaryIO) -> List[str]:
    """List the names a stream of pickles imports, in order; a legacy `.pt` holds several one after the other.

    Raises:
        CheckpointCorrupt: the first pickle ends before its end.
    """
    names: List[str] = []
    first = True
    while True:
        start = file.tell()
        if not first and file.read(1) != b"\x80":  # behind the last pickle stand the tensors' raw bytes
            return names
        file.seek(start)
        try:
            names += _names_of_one(file)
        except (ValueError, IndexError, KeyError, UnicodeDecodeError, MemoryError, OverflowError) as error:
            if first:
                raise CheckpointCorrupt(f"{path}: not a whole pickle ({error})") from None
            return names
        first = False


def _names_of_one(file: BinaryIO) -> List[str]:
    names: List[str] = []
    pushed: List[Any] = []  # strings only; enough to resolve STACK_GLOBAL as pickle itself writes it
    memo: Dict[int, Any] = {}
    last: Optional[str] = None
    for opcode, given, _ in pickletools.genops(file):
        kind, argument = opcode.name, given  # type: str, Any
        if kind in ("GLOBAL", "INST"):
            names.append(_modern(*str(argument).split(" ", 1)))
        elif kind == "STACK_GLOBAL":
            names.append(".".join(str(part) for part in pushed[-2:]) if len(pushed) > 1 else "a name made at load time")
        elif kind.startswith("EXT"):
            names.append(f"extension {argument}")
        elif "UNICODE" in kind or "STRING" in kind:
            last = str(argument)
            pushed.append(last)
        elif kind == "MEMOIZE":
            memo[len(memo)] = last
        elif kind in ("PUT", "BINPUT", "LONG_BINPUT"):
            memo[int(argument)] = last
        elif kind in ("GET", "BINGET", "LONG_BINGET"):
            pushed.append(memo.get(int(argument)))
        if kind not in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "PROTO", "FRAME") and not (
            "UNICODE" in kind or "STRING" in kind
        ):
            last = None
    return names


def _modern(module: str, name: str) -> str:
    """The name a load would really look up: pickles of protocol 0 to 2 use Python 2's names."""
    if (module, name) in _compat_pickle.NAME_MAPPING:
        module, name = _compat_pickle.NAME_MAPPING[(module, name)]
    else:
        module = _compat_pickle.IMPORT_MAPPING.get(module, module)
    return f"{module}.{name}"
