"""Start a command of ours independent of the terminal: launchd on macOS, a systemd user unit, or a session of its own.

It never starts again by itself, after logout, failure or reboot.

    launchd   plist at runs/<name>.plist; a finished entry of the label is booted out first
    systemd   where the user's manager outlives his logins (linger); the unit lies in $XDG_RUNTIME_DIR
    session   everywhere else: setsid, no terminal, streams in a log

Not here: what the command does (local.py, controller.py).
"""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from remote_runner.errors import NotStarted, Refused

KEPT = ("PATH", "HOME", "LANG", "PYTHONPATH", "SSH_AUTH_SOCK", "NCM_MLX_MEMORY_LIMIT_GB", "NCM_MLX_GENERATOR_STEPS")


@dataclass(frozen=True, kw_only=True)
class Service:
    """One command to start and leave."""

    label: str  # com.ncm-mlx.<name>
    argv: list[str]
    root: Path  # where it runs
    log: Path
    plist: Path
    env: dict[str, str]


def environment() -> dict[str, str]:
    """What a service needs of ours: neither launchd nor systemd hand on a shell's environment."""
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def template(name: str) -> str:
    """A file of provisioning/, from the wheel or from the source tree."""
    packaged = resources.files("remote_runner") / "provisioning" / name
    return (packaged if packaged.is_file() else Path(__file__).parents[1] / "provisioning" / name).read_text("utf-8")


def plist_of(service: Service) -> bytes:
    """The launchd job."""
    job: dict[str, Any] = plistlib.loads(template("experiment.plist").encode())
    job.update(
        Label=service.label,
        ProgramArguments=service.argv,
        WorkingDirectory=str(service.root),
        EnvironmentVariables=service.env,
        StandardOutPath=str(service.log),
        StandardErrorPath=str(service.log),
    )
    return plistlib.dumps(job)


def _quoted(word: str) -> str:
    """A word for systemd: quoted as in C, its own `%` and `$` doubled (systemd.syntax, systemd.service)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{escaped}"'


def unit_of(service: Service) -> str:
    """The systemd user unit."""
    filled = {
        "@LABEL@": service.label.replace("%", "%%"),
        "@ROOT@": str(service.root).replace("%", "%%"),
        "@ARGV@": " ".join(_quoted(word).replace("$", "$$") for word in service.argv),
        "@ENVIRONMENT@": " ".join(_quoted(f"{name}={value}") for name, value in service.env.items()),
        "@LOG@": str(service.log).replace("%", "%%"),
    }
    text = template("experiment.service")
    for mark, value in filled.items():
        text = text.replace(mark, value)
    return text


def choose() -> str:
    """launchd, systemd or session: by what runs here and outlives a logout."""
    if sys.platform == "darwin":
        return "launchd"
    if (
        shutil.which("systemctl")
        and os.environ.get("XDG_RUNTIME_DIR")
        and _succeeds("systemctl", "--user", "is-active", "default.target")
    ):
        linger = subprocess.run(
            ["loginctl", "show-user", str(os.getuid()), "--property=Linger"],
            capture_output=True,
            text=True,
            check=False,
        )
        if linger.stdout.strip() == "Linger=yes":
            return "systemd"
    return "session"


def _succeeds(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def start(service: Service) -> str:
    """Start it by the means there is.

    Returns:
        How to look at it and end it, one line.

    Raises:
        Refused: the entry of that label runs. NotStarted: the means refused.
    """
    service.log.parent.mkdir(parents=True, exist_ok=True)
    return {"launchd": _launchd, "systemd": _systemd, "session": _session}[choose()](service)


def _launchd(service: Service) -> str:
    domain = f"gui/{os.getuid()}"
    entry = f"{domain}/{service.label}"
    seen = subprocess.run(["launchctl", "print", entry], capture_output=True, text=True, check=False)
    if seen.returncode == 0:
        if "state = running" in seen.stdout:
            raise Refused(f"{service.label} runs already", fix=f"look: launchctl print {entry}")
        subprocess.run(["launchctl", "bootout", entry], capture_output=True, check=False)
    service.plist.parent.mkdir(parents=True, exist_ok=True)
    fresh = service.plist.with_name(service.plist.name + ".tmp")
    fresh.write_bytes(plist_of(service))
    fresh.replace(service.plist)  # launchd may be reading the old one
    _must("launchctl", "bootstrap", domain, str(service.plist))
    return f"launchctl print {entry}; pause: launchctl kill SIGUSR1 {entry}"


def _systemd(service: Service) -> str:
    name = f"{service.label}.service"
    if _succeeds("systemctl", "--user", "is-active", name):
        raise Refused(f"{name} runs already", fix=f"look: systemctl --user status {name}")
    folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "systemd/user"
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{name}.tmp"
    fresh.write_text(unit_of(service), "utf-8")
    fresh.replace(folder / name)
    _must("systemctl", "--user", "daemon-reload")
    _must("systemctl", "--user", "start", name)
    return f"systemctl --user status {name}; pause: systemctl --user stop {name}"


def _session(service: Service) -> str:
    with service.log.open("ab") as log:
        child = subprocess.Popen(
            service.argv,
            cwd=service.root,
            env={**os.environ, **service.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return f"pid {child.pid}, talk in {service.log}; pause: kill -USR1 {child.pid}"


def _must(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotStarted(
            f"{' '.join(argv)} failed: {(done.stderr or done.stdout).strip()}", fix="run it by itself to see"
        )
