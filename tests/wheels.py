"""Packages of one module, for tests that install something without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path


def package(site: Path, name: str, version: str) -> None:
    """An installed distribution of one module."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(f"__version__ = {version!r}\ndef zeros(n): return [0] * n\n")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("")
    (info / "INSTALLER").write_text("pip\n")


def wheel(folder: Path, name: str, version: str, requires: str = "") -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return path
