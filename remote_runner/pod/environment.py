"""The workload's Python: which one of the image's, and what is put on top of it, once per hash of its inputs.

    uv.lock                       uv sync --frozen
    environment.yml               micromamba, mamba or conda
    requirements.txt, pyproject   a venv that sees the packages of the image's python
    none of these                 the image's python as it is

An image's working torch stays: what is installed on top is held to its version, unless a file pins another one.

Not here: which interpreter a run's programs get of it (interpreter.py), the variables that a workload gets
(variables.py), whether torch and the GPUs agree (gpu.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from remote_runner.pod import files, layout, variables
from remote_runner.pod.interpreter import MADE

FOLDER = layout.OWN + "/environment"
CONDA_FILES = ("environment.yml", "environment.yaml")
KINDS = ("auto", "uv", "conda", "pip", "image")
_HELD = ("torch", "torchvision", "torchaudio")
_IMAGE_PYTHONS = ("/venv/main/bin/python", "/opt/conda/bin/python")
IMPORT_S = 300

_ASK_IMAGE = """
import json, sys, sysconfig
from importlib import metadata
held = {}
for name in %r:
    try:
        held[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
if "torch" in held:
    import torch
    torch.zeros(1)
paths = sorted({p for p in sys.path if p.endswith(("site-packages", "dist-packages"))})
print("<<" + json.dumps({"held": held, "paths": paths, "version": sys.version}) + ">>")
"""


class Refused(Exception):
    """The environment can't be made; the message says what to do."""


class Image(NamedTuple):
    """An interpreter of the image and what it has."""

    python: str
    held: Dict[str, str]  # torch and its kin -> version; empty where torch does not work
    paths: List[str]  # its site-packages


def kind(root: str, job: Dict[str, Any]) -> str:
    """What the files of the project ask for."""
    asked = str(job.get("environment") or "image")
    if asked != "auto":
        return asked
    if os.path.exists(os.path.join(root, "uv.lock")):
        return "uv"
    if any(os.path.exists(os.path.join(root, name)) for name in CONDA_FILES):
        return "conda"
    if os.path.exists(os.path.join(root, "requirements.txt")) or job.get("requirements"):
        return "pip"
    return "image"


# --- the image's python --------------------------------------------------------------------


def candidates(job: Dict[str, Any], path: str) -> List[str]:
    """Interpreters in the order in which they are tried; with one named, that alone.

    Args:
        path: the PATH of the container's first process, which a login does not have.
    """
    if job.get("python"):
        return [str(job["python"])]
    found = []
    for folder in path.split(os.pathsep):
        found += [os.path.join(folder, name) for name in ("python", "python3") if folder.startswith("/")]
    found += [*_IMAGE_PYTHONS, job["base_python"]]
    return [p for p in dict.fromkeys(found) if os.access(p, os.X_OK)]


def choose(tried: Sequence[str], modules: Sequence[str], can_install: bool) -> str:
    """The first interpreter that imports what the settings' `probe` names.

    Args:
        can_install: what is missing may come with the environment; then any that runs will do.

    Raises:
        Refused: none does.
    """
    why = []
    runs = ""
    for python in tried:
        fault = _can_import(python, modules)
        if not fault:
            return python
        why.append(f"{python}: {fault}")
        if not runs and not _can_import(python, []):
            runs = python
    if runs and can_install:
        return runs
    raise Refused(
        f"no python here imports {', '.join(modules) or 'anything'}: {'; '.join(why) or 'there is none'}. "
        "Take an image that has it, name its interpreter with --python, or add a requirements.txt"
    )


def _can_import(python: str, modules: Sequence[str]) -> str:
    code = "".join(f"import {m}\n" for m in modules) or "pass"
    try:
        done = subprocess.run(
            [python, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IMPORT_S
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return (done.stderr.strip().splitlines() or ["failed"])[-1] if done.returncode else ""


def look_at(python: str) -> Image:
    """What an interpreter of the image has; a torch that can't make a tensor does not count."""
    for code in (_ASK_IMAGE % (_HELD,), _ASK_IMAGE % ((),)):
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=IMPORT_S)
        told = re.search(r"<<(\{.*\})>>", done.stdout)
        if done.returncode == 0 and told:
            facts = json.loads(told.group(1))
            return Image(python, facts["held"], facts["paths"])
    raise Refused(f"{python} does not work: {done.stderr.strip()[-300:]}. Name another with --python")


# --- the commands: pure, so that a test can read them ------------------------------------------


def uv_commands(uv: str, image: Image) -> List[List[str]]:
    """The lock file decides everything, torch too."""
    return [[uv, "sync", "--frozen", "--python", image.python]]


def conda_commands(tool: str, file: str, folder: str) -> List[List[str]]:
    if os.path.basename(tool) == "conda":
        return [[tool, "env", "create", "--yes", "--prefix", folder, "--file", file]]
    return [[tool, "create", "--yes", "--prefix", folder, "--file", file]]


def pip_commands(folder: str, image: Image, requirements: List[str], editable: bool) -> List[List[str]]:
    """Into a venv: an image whose python is externally managed (PEP 668) is not written to.

    Args:
        requirements: files for `-r`; the constraints lie beside the environment.
    """
    python = os.path.join(folder, "bin", "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    wanted = [word for file in requirements for word in ("-r", file)]
    commands = [[*pip, "-c", constraints_file(folder), *wanted]] if wanted else []
    if editable:
        commands.append([*pip, "--no-deps", "-e", "."])
    return commands


def constraints_file(folder: str) -> str:
    return folder + "-constraints.txt"


def constraints(image: Image, requirements: str) -> str:
    """Hold torch and its kin to what the image has, but where a line pins another version."""
    pinned = {m.group(1).lower() for m in re.finditer(r"^\s*([\w.-]+)\s*(?:\[[^\]]*\])?\s*===?", requirements, re.M)}
    return "".join(f"{name}=={version}\n" for name, version in sorted(image.held.items()) if name not in pinned)


def key(root: str, job: Dict[str, Any], what: str, tried: Sequence[str]) -> str:
    """A digest of all that an environment is made from."""
    found = [what, job.get("probe") or [], job.get("requirements") or []]
    for python in tried:
        info = os.stat(python)
        found.append([python, info.st_size, info.st_mtime_ns])
    for name in ("uv.lock", *CONDA_FILES, "requirements.txt", *(["pyproject.toml"] if what in ("uv", "pip") else [])):
        try:
            found.append([name, files.digest(root, name)])
        except OSError:
            continue
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


# --- making it ---------------------------------------------------------------------------------


def make(root: str, job: Dict[str, Any]) -> Dict[str, Any]:
    """Make the environment, or find it made.

    Returns:
        `python`: the workload's interpreter; `image`, `kind`, `key`, `held`.

    Raises:
        Refused: with what to do.
    """
    what = kind(root, job)
    tried = candidates(job, variables.first_process().get("PATH", ""))
    digest = key(root, job, what, tried)
    before = files.read_json(root, MADE)
    if isinstance(before, dict) and before.get("key") == digest and os.access(before.get("python", ""), os.X_OK):
        print(f"[remote-run] set-up: {what}, as it was made before", flush=True)
        return before
    files.remove(root, [MADE])
    print(f"[remote-run] set-up: looking through the image's {len(tried)} pythons", flush=True)
    image = look_at(choose(tried, job.get("probe") or [], what != "image"))
    print(f"[remote-run] set-up: {what}, on {image.python} {image.held or ''}", flush=True)
    python = image.python
    if what != "image":
        folder = os.path.join(root, FOLDER)
        shutil.rmtree(folder, ignore_errors=True)
        for command in _commands(root, job, what, folder, image):
            _run(command, root, folder)
        python = os.path.join(folder, "bin", "python")
    result = {"python": python, "image": image.python, "kind": what, "key": digest, "held": image.held}
    files.replace_json(root, MADE, result)
    return result


def _commands(root: str, job: Dict[str, Any], what: str, folder: str, image: Image) -> Iterator[List[str]]:
    if what == "uv":
        yield from uv_commands(_tool("uv"), image)
    elif what == "conda":
        file = next(name for name in CONDA_FILES if os.path.exists(os.path.join(root, name)))
        yield from conda_commands(_tool("micromamba", "mamba", "conda"), file, folder)
    else:
        _make_venv(image, folder)
        requirements = ["requirements.txt"] if os.path.exists(os.path.join(root, "requirements.txt")) else []
        if not requirements and job.get("requirements"):
            requirements = [folder + "-requirements.txt"]
            _write(requirements[0], "\n".join(job["requirements"]) + "\n")
        text = ""
        for name in requirements:
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as f:
                text += f.read() + "\n"
        _write(constraints_file(folder), constraints(image, text))
        yield from pip_commands(folder, image, requirements, bool(job.get("editable")))


def _make_venv(image: Image, folder: str) -> None:
    """A venv on the image's python that sees its packages, though that may be a venv itself.

    The image's pip is among them and installs into the venv that runs it; a copy of its own, a thousand files on what
    may be a network volume, is made only where the image has none.
    """
    bare = ["--without-pip"] if not _can_import(image.python, ["pip"]) else []
    made_it = subprocess.run([image.python, "-m", "venv", *bare, folder], capture_output=True, text=True)
    if made_it.returncode:  # Debian's python3 without python3-venv has no ensurepip
        said = (made_it.stdout + made_it.stderr).strip()[-300:]
        raise Refused(f"{image.python} -m venv does not work: {said}. On Debian: apt-get install python3-venv")
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = subprocess.run([os.path.join(folder, "bin", "python"), "-c", ask], capture_output=True, text=True, check=True)
    # --system-site-packages would show those of the python below the image's own venv, not the image's
    _write(os.path.join(own.stdout.strip(), "_image.pth"), "".join(p + "\n" for p in image.paths))


def _tool(*names: str) -> str:
    places = os.pathsep.join([variables.path(), "/opt/conda/bin", os.path.expanduser("~/.local/bin")])
    for name in names:
        found = shutil.which(name, path=places)
        if found:
            return found
    raise Refused(
        f"{' or '.join(names)} is not on this image. Take an image that has it, install it with "
        f'`setup = "…"` and environment = "image", or add a requirements.txt'
    )


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def _run(command: List[str], root: str, folder: str) -> None:
    print("[remote-run] set-up: $ " + " ".join(command), flush=True)
    env = {**os.environ, "PATH": variables.path(), "UV_PROJECT_ENVIRONMENT": folder}
    code = subprocess.run(command, cwd=root, env=env, stdin=subprocess.DEVNULL).returncode
    if code:
        raise Refused(f"`{' '.join(command[:4])} …` ended with {code}; what it said stands above")


def main(root: str) -> int:
    """Make the environment of the job that lies in a root; its talk is the run's log."""
    job = files.read_json(root, layout.JOB)
    try:
        make(root, job)
    except (Refused, OSError, subprocess.SubprocessError) as e:
        print(f"error: the environment: {e}", file=sys.stderr, flush=True)
        return 1
    return 0
