"""The state of a PyTorch training as one tree of host tensors, numbers and text.

    model, optimizer, scheduler, random states  ->  tree  ->  .pt (torch_file.py) or format 1 (torch_snapshot.py)

A tree holds dicts, lists, tuples, sets, tensors, numbers, text and None: what loads again with `weights_only=True`.
Anything else is refused by its path when it is saved, not when the run needs it back.

Not here: bytes and files, reading a tree back into live objects (torch.py).
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy
import torch

Tree = Any
Buffers = Dict[str, torch.Tensor]
_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_EXACT_CHECK_ELEMENTS = 1 << 20


class NonFinite(ValueError):
    """A tensor holds NaN or an infinity; nothing finite was replaced by it."""


def stage(tree: Tree, buffers: Optional[Buffers] = None) -> Tree:
    """Return the tree with every tensor on the host and compact, ready for another thread.

    Args:
        tree: what to save; tensors of any device.
        buffers: host tensors by path, filled here and used again by the next call with the same dict, so that
            only the first copy pays for page faults; from CUDA they are copied on the current stream, and the caller
            waits for it. None: host tensors are taken by reference, not copied.

    Raises:
        TypeError: something that no `weights_only` load returns, or a sharded tensor, with its path.
    """
    copies: Dict[Tuple[Any, ...], torch.Tensor] = {}  # tied weights stay tied

    def copy(path: str, tensor: torch.Tensor) -> torch.Tensor:
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() == 0 or key not in copies:
            copies[key] = _to_host(path, tensor.detach(), buffers)
        return copies[key]

    return map_tensors(tree, copy)


def _to_host(path: str, tensor: torch.Tensor, buffers: Optional[Buffers]) -> torch.Tensor:
    if buffers is None:
        host = tensor.cpu().contiguous()
        whole = host.untyped_storage().nbytes() == host.nbytes  # a slice would drag its whole storage along
        return host if whole else host.clone()
    buffer = buffers.get(path)
    if buffer is None or buffer.dtype != tensor.dtype or buffer.shape != tensor.shape:
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        buffers[path] = buffer
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        # one plain memcpy: torch spreads a copy over threads, and waits for the slowest where cores are shared
        numpy.copyto(_bytes(buffer), _bytes(tensor))
        return buffer
    return buffer.copy_(tensor, non_blocking=tensor.is_cuda)


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def map_tensors(tree: Tree, change: Callable[[str, torch.Tensor], Any], path: str = "") -> Tree:
    """Rebuild a tree with each tensor replaced by `change(path, tensor)`; other types are refused by path."""
    if isinstance(tree, torch.Tensor):
        if type(tree) not in (torch.Tensor, torch.nn.Parameter) or tree.layout != torch.strided or tree.is_quantized:
            raise TypeError(
                f"{path} is a {type(tree).__name__} ({tree.layout}), not a whole dense tensor; gather it first "
                "(torch.distributed.checkpoint.state_dict with full_state_dict=True, say)"
            )
        return change(path, tree)
    if type(tree) in (dict, OrderedDict, Counter):
        for key in tree:
            if type(key) not in (str, int, float, bool, type(None)):
                raise TypeError(f"{path}: the key {key!r} is a {type(key).__name__}; use text or numbers")
        items = (
            (key, map_tensors(value, change, f"{path}.{key}" if path else str(key))) for key, value in tree.items()
        )
        return type(tree)(dict(items)) if type(tree) is not dict else dict(items)
    if type(tree) in (list, tuple):
        return type(tree)(map_tensors(value, change, f"{path}[{index}]") for index, value in enumerate(tree))
    if type(tree) is set and all(type(item) in (str, int, float) for item in tree):
        return set(tree)
    if type(tree) in _SCALARS:
        return tree
    raise TypeError(
        f"{path} is a {type(tree).__name__}; a checkpoint holds tensors, numbers, text, lists, tuples and dicts, "
        "for nothing else loads without running code"
    )


def tensors_of(tree: Tree) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield (path, tensor) in the tree's order."""
    found: List[Tuple[str, torch.Tensor]] = []
    map_tensors(tree, lambda path, tensor: found.append((path, tensor)))
    yield from found


def refuse_nonfinite(tree: Tree, what: str) -> None:
    """Raise NonFinite with the path of the first tensor that holds NaN or an infinity; host tensors."""
    for path, tensor in tensors_of(tree):
        kind = nonfinite_kind(tensor)
        if kind:
            raise NonFinite(
                f"{what}: {path} holds {kind}"
                + ("; register a mask as a buffer with persistent=False" if kind == "an infinity" else "")
            )


def nonfinite_kind(tensor: torch.Tensor) -> str:
    """Return "NaN", "an infinity" or "" for one tensor of any dtype.

    A sum is fast and is non-finite whenever an element is; only then (or when the sum itself overflows) is every
    element looked at. fp8 has no sum: its elements are widened piece by piece.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return ""
    flat = torch.view_as_real(tensor.contiguous()).reshape(-1) if tensor.is_complex() else tensor.reshape(-1)
    if flat.element_size() > 1 and bool(torch.isfinite(flat.sum())):
        return ""
    worst = ""
    for start in range(0, flat.numel(), _EXACT_CHECK_ELEMENTS):
        piece = flat[start : start + _EXACT_CHECK_ELEMENTS]
        piece = piece.float() if piece.element_size() < 4 else piece
        if bool(torch.isnan(piece).any()):
            return "NaN"
        if bool(torch.isinf(piece).any()):
            worst = "an infinity"
    return worst


def random_states() -> Dict[str, Tree]:
    """Return the random states of Python, NumPy, torch and every CUDA device."""
    version, words, gauss = random.getstate()
    states: Dict[str, Tree] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
    states["numpy"] = {
        "name": str(name),
        "keys": torch.from_numpy(numpy.asarray(keys).astype(numpy.int64)),
        "position": int(position),
        "has_gauss": int(has_gauss),
        "cached": float(cached),
    }
    return states


def set_random_states(states: Mapping[str, Tree]) -> None:
    """Put back what `random_states` returned."""
    python = states["python"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    torch.set_rng_state(states["torch"])
    saved = states["numpy"]
    keys = saved["keys"].numpy().astype(numpy.uint32)
    numpy.random.set_state((saved["name"], keys, saved["position"], saved["has_gauss"], saved["cached"]))
    if len(states["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.cuda.set_rng_state_all(states["cuda"])
    else:
        print(
            f"warning: random states of {len(states['cuda'])} CUDA devices were saved, other devices are here",
            flush=True,
        )
