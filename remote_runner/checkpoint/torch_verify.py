"""Say whether a PyTorch file is whole, safe and complete; also as a program, for a child process.

    python -m remote_runner.checkpoint.torch_verify x.pt… [--as checkpoint] [--require KEY]… [--model package:Class]

prints one JSON object for each file and exits 0 or 7. The program's caller never unpickles a file from a pod: this
process does, with `weights_only`, after a scan of the pickle that needs no torch at all.

Not here: the scan (torch_scan.py), the archive (torch_zip.py), loading into a training (torch_load.py).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

from remote_runner.checkpoint.contract import say
from remote_runner.checkpoint.torch_scan import check_file
from remote_runner.checkpoint.torch_zip import FORMAT, CheckpointCorrupt

if TYPE_CHECKING:
    from torch import Tensor

UNVERIFIED = 7


class NotFinite(CheckpointCorrupt):
    """A tensor holds what is no number."""


class NoTorch(CheckpointCorrupt):
    """What is in the file can't be looked at here."""


def verify_checkpoint(
    path: Any, *, require: Sequence[str] = (), as_checkpoint: bool = False, model: Optional[str] = None
) -> Dict[str, Any]:
    """Do what `examine` does, and print "✓ Verified: step=N" when the file is good."""
    report = examine(path, require=require, as_checkpoint=as_checkpoint, model=model)
    say(summary(report))
    return report


def examine(
    path: Any, *, require: Sequence[str] = (), as_checkpoint: bool = False, model: Optional[str] = None
) -> Dict[str, Any]:
    """Prove one `.pt` file, or one in snapshot format 1 that this library wrote.

    Args:
        path: the file.
        require: keys that must be there: of the file itself, or of the weights in it, wrapper prefixes aside.
        as_checkpoint: hold a file of somebody else to what a checkpoint of ours holds.
        model: `package.module:Class`; the weights must load strictly into `Class(config)`, config from the file.
            This imports a module of yours: name only one you trust.

    Returns: path, step (None when the file has none), keys, tensors (how many), prefix (a wrapper's, or ""),
        sidecar ("matches" or "none"), ours, warnings (infinities in files of others).

    Raises:
        CheckpointRefused: it contains code. CheckpointCorrupt: anything else; the message names file and tensor.
        OSError: the file can't be read.
    """
    path = Path(path)
    snapshot = path.suffix == ".safetensors"
    if not snapshot:
        check_file(path)  # before torch is loaded, which takes seconds
    from remote_runner.checkpoint.torch_load import read_checkpoint, unpickle
    from remote_runner.checkpoint.torch_publish import digest_of, digests_beside
    from remote_runner.checkpoint.torch_save import REQUIRED_KEYS

    named = digests_beside(path)
    if named and digest_of(path) not in named:
        raise CheckpointCorrupt(f"{path}: its SHA-256 is not in its sidecar; the bytes were changed")
    tree: Any = read_checkpoint(path) if snapshot else unpickle(path)  # the first proves every digest itself
    top: Mapping[Any, Any] = tree if isinstance(tree, Mapping) else {}
    ours = top.get("format") == FORMAT or snapshot
    if ours or as_checkpoint:
        _need(path, [key for key in REQUIRED_KEYS if key not in top])
    weights = _weights(top)
    prefix = _prefix(weights)
    _need(path, [key for key in require if key not in top and key not in {_bare(name) for name in weights}])
    tensors, warnings = _check_finite(path, tree, ours or as_checkpoint)
    if model is not None:
        _load_strictly(path, model, top, weights)
    step = top.get("step")
    return {
        "path": str(path),
        "ok": True,
        "step": step if isinstance(step, int) else None,
        "keys": [str(key) for key in top],
        "tensors": tensors,
        "prefix": prefix,
        "sidecar": "matches" if named else "none",
        "ours": ours,
        "warnings": warnings,
    }


def summary(report: Mapping[str, Any]) -> str:
    """One line for people."""
    prefix = f", names carry the prefix {report['prefix']!r}" if report["prefix"] else ""
    return f"✓ Verified: step={report['step']} ({report['tensors']} tensors, keys {', '.join(report['keys'])}{prefix})"


def main(arguments: Optional[List[str]] = None) -> int:
    """Verify files, and print the result of each as a line of JSON."""
    parser = argparse.ArgumentParser(prog="torch_verify")
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--require", action="append", default=[], metavar="KEY")
    parser.add_argument("--as", dest="kind", choices=["checkpoint"])
    parser.add_argument("--model", metavar="PACKAGE.MODULE:CLASS")
    options = parser.parse_args(arguments)
    results = [_result(path, options) for path in options.paths]
    return 0 if all(results) else UNVERIFIED


def _result(path: Path, options: argparse.Namespace) -> bool:
    try:
        try:
            report = examine(path, require=options.require, as_checkpoint=options.kind is not None, model=options.model)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise NoTorch(
                f"{path}: whole and free of code, but its tensors can't be looked at without torch: "
                "pip install 'remote-run[torch]'"
            ) from None
    except (CheckpointCorrupt, OSError, ImportError) as error:
        report = {"path": str(path), "ok": False, "error": str(error), "kind": type(error).__name__}
    else:
        report["summary"] = summary(report)
    print(json.dumps(report, ensure_ascii=False), flush=True)
    return bool(report["ok"])


def _need(path: Path, missing: List[str]) -> None:
    if missing:
        raise CheckpointCorrupt(f"{path}: lacks {', '.join(missing)}")


def _weights(top: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The weights in a checkpoint, or the file itself where it is a plain state dict."""
    inner = top.get("model", top.get("state_dict", top))
    return inner if isinstance(inner, Mapping) else {}


def _bare(name: Any) -> str:
    from remote_runner.checkpoint.torch_match import strip_wrappers

    return strip_wrappers(str(name))


def _prefix(weights: Mapping[str, Any]) -> str:
    """The wrapper prefixes that every name carries, such as "module."."""
    from remote_runner.checkpoint.torch_match import WRAPPERS

    names, prefix = [str(name) for name in weights], ""
    while names:
        found = next((w for w in WRAPPERS if all(name.startswith(prefix + w) for name in names)), None)
        if found is None:
            break
        prefix += found
    return prefix


def _check_finite(path: Path, tree: Any, strict: bool) -> Tuple[int, List[str]]:
    from remote_runner.checkpoint.torch_state import nonfinite_kind

    count, warnings = 0, []
    for name, tensor in _tensors(tree, ""):
        count += 1
        kind = nonfinite_kind(tensor)
        if kind == "NaN" or (kind and strict):
            raise NotFinite(f"{path}: {name} ({str(tensor.dtype).split('.')[-1]}) holds {kind}")
        if kind:
            warnings.append(f"{name} holds {kind}")
    return count, warnings


def _tensors(tree: Any, path: str) -> List[Tuple[str, Tensor]]:
    """Every tensor in what a foreign file holds; types that carry none are passed over."""
    import torch

    if isinstance(tree, torch.Tensor):
        return [(path or "the tensor", tree.to_dense() if tree.layout != torch.strided else tree)]
    if isinstance(tree, Mapping):
        pairs: Any = ((f"{path}.{key}" if path else str(key), value) for key, value in tree.items())
    elif isinstance(tree, (list, tuple)):
        pairs = ((f"{path}[{index}]", value) for index, value in enumerate(tree))
    else:
        return []
    return [found for name, value in pairs for found in _tensors(value, name)]


def _load_strictly(path: Path, target: str, top: Mapping[Any, Any], weights: Mapping[str, Any]) -> None:
    import torch

    module, _, name = target.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise CheckpointCorrupt(
            f"{path}: --model {target} can't be imported ({error}); write package.module:Class"
        ) from None
    if "config" not in top:
        raise CheckpointCorrupt(f"{path}: holds no config to build {target} from")
    try:
        with torch.device("meta"):  # names and shapes need no memory
            built = factory(top["config"])
        built.load_state_dict({_bare(key): value for key, value in weights.items()}, strict=True, assign=True)
    except Exception as error:  # noqa: BLE001  a foreign constructor may raise anything; the verdict is the same
        raise CheckpointCorrupt(f"{path}: does not load into {target}: {str(error)[:500]}") from None


if __name__ == "__main__":
    sys.exit(main())
