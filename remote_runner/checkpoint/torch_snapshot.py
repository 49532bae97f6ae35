"""A tree of host tensors in snapshot format 1: a plain safetensors file, no pickle in it, bf16 kept as bf16.

    {"model": {"w": T}, "optimizer": {"state": {0: {"step": T}}}}
      tensors   model.w, optimizer.state.0.step
      state     "tree": the same shape in JSON, a tensor as {"tensor": NAME}, what JSON lacks as one-key objects

Not here: the file (snapshot.py), what is in the tree (torch_save.py).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Dict

import torch

from remote_runner.checkpoint import header, snapshot
from remote_runner.checkpoint.snapshot import Snapshot, Tensor
from remote_runner.checkpoint.torch_state import Tree

LATEST_SUFFIX = "-training.safetensors"
_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ONE_KEY = (
    "tensor",
    "tuple",
    "items",
    "ordered",
    "counter",
    "set",
    "float",
    "complex",
    "bytes",
    "dtype",
    "device",
    "size",
)


def as_tensor(value: torch.Tensor) -> Tensor:
    """A host tensor for the snapshot writer, by reference where it is contiguous."""
    if value.dtype not in _NAMES:
        raise TypeError(f"format 1 has no name for {value.dtype}; save it as .pt")
    flat = value.detach().contiguous().reshape(-1)
    return Tensor(_NAMES[value.dtype], tuple(value.shape), flat.view(torch.uint8).numpy())


def from_tensor(value: Tensor) -> torch.Tensor:
    """The torch tensor of a loaded one; it shares its memory."""
    flat = torch.from_numpy(value.data.reshape(-1).view("uint8"))
    return flat.view(_DTYPES[value.dtype]).reshape(value.shape)


def write_snapshot(path: Path, tree: Dict[str, Tree]) -> int:
    """Save a tree as `<stage>-training.safetensors`; returns its size in bytes.

    Raises:
        ValueError: the path has another name. The snapshot format fixes it.
        OSError, NonFinite: as `snapshot.save`.
    """
    stage = stage_of(path)
    tensors: Dict[str, Tensor] = {}
    lasting = {key: value for key, value in tree.items() if key not in ("timestamp", "torch", "format")}
    encoded = _encode(lasting, "", tensors)
    position = tree["data"] if isinstance(tree["data"], dict) else {}
    state = {
        "schema": 1, "stage": stage, "stage_index": 0, "step": tree["step"], "target_steps": tree["step"],
        "epoch": int(position.get("epoch", 0)), "cursor": int(position.get("batch", 0)),
        "order_sha256": str(position.get("order_sha256", "")), "seed": int(position.get("seed", 0)), "keys": {},
        "best": None, "evaluation_due": False, "lineage": None, "tree": encoded,
        "fingerprint": hashlib.sha256(header.canonical(_encode(tree["config"], "", {}))).hexdigest(),
    }  # fmt: skip
    volatile = {"timestamp": tree["timestamp"], "torch": tree["torch"]}
    return snapshot.save(path.parent, Snapshot(tensors, state, volatile)).size_bytes


def read_snapshot(path: Path) -> Dict[str, Tree]:
    """Read a snapshot that `write_snapshot` wrote. Raises SnapshotCorrupt."""
    found = snapshot.load(path)
    if "tree" not in found.state:
        raise snapshot.SnapshotCorrupt(f"{path}: a snapshot, but not of this library: its state has no 'tree'")
    tree = _decode(found.state["tree"], found.tensors)
    return {**tree, **found.volatile}


def stage_of(path: Path) -> str:
    """`a/codec-training.safetensors` -> `codec`."""
    if not path.name.endswith(LATEST_SUFFIX) or path.name == LATEST_SUFFIX:
        raise ValueError(f"{path}: a snapshot is named <stage>{LATEST_SUFFIX}, model{LATEST_SUFFIX} say")
    return path.name[: -len(LATEST_SUFFIX)]


def _encode(value: Any, name: str, tensors: Dict[str, Tensor]) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors[name] = as_tensor(value)
        return {"tensor": name}
    if (
        kind is dict
        and all(type(key) is str for key in value)
        and not (len(value) == 1 and next(iter(value)) in _ONE_KEY)
    ):
        return {key: _encode(item, f"{name}.{key}" if name else key, tensors) for key, item in value.items()}
    if kind in (dict, OrderedDict, Counter):
        pairs = [[_encode(k, "", tensors), _encode(v, f"{name}.{k}", tensors)] for k, v in value.items()]
        return {{dict: "items", OrderedDict: "ordered", Counter: "counter"}[kind]: pairs}
    if kind is list:
        return [_encode(item, f"{name}.{index}", tensors) for index, item in enumerate(value)]
    if kind in (tuple, torch.Size):
        return {"tuple" if kind is tuple else "size": _encode(list(value), name, tensors)}
    if kind is set:
        return {"set": sorted(value, key=repr)}
    if kind is float and not math.isfinite(value):
        return {"float": repr(value)}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind in (torch.dtype, torch.device):
        return {"dtype" if kind is torch.dtype else "device": str(value)}
    return value


def _decode(value: Any, tensors: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    key, body = next(iter(value.items()), ("", None))  # type: str, Any
    if len(value) != 1 or key not in _ONE_KEY:
        return {name: _decode(item, tensors) for name, item in value.items()}
    if key == "tensor":
        return from_tensor(tensors[body])
    if key in ("items", "ordered", "counter"):
        pairs = [(_decode(k, tensors), _decode(v, tensors)) for k, v in body]
        return dict(pairs) if key == "items" else OrderedDict(pairs) if key == "ordered" else Counter(dict(pairs))
    if key in ("tuple", "size"):
        return (tuple if key == "tuple" else torch.Size)(_decode(body, tensors))
    if key == "complex":
        return complex(*body)
    if key == "bytes":
        return bytes.fromhex(body)
    if key == "dtype":
        return getattr(torch, str(body).split(".")[-1])
    return torch.device(body) if key == "device" else set(body) if key == "set" else float(body)
