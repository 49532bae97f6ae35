"""Read everything that can be read here, before any connection: the config, its check, settings, options.

Not here: what the settings mean (settings.py), what the pod says (preflight.py).
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from remote_runner import limits, record
from remote_runner import secrets as secret_values
from remote_runner import settings as settings_file
from remote_runner.errors import UsageFault
from remote_runner.pod import files, layout
from remote_runner.settings_keys import Settings

SENT_ENVIRONMENT = ("NCM_MLX_GENERATOR_STEPS", "NCM_MLX_MEMORY_LIMIT_GB")
CHECK_REFUSED = 78
CHECK_S = 120
LONGEST_NAME = 200  # bytes; files are named after it with endings of their own


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asked for."""

    resume: bool = False
    fresh: bool = False
    max_s: float = 24 * 3600.0
    remote_dir: str = ""
    python: str = ""
    setup: bool = True
    backup_to: str = ""
    backup_every_s: float | None = None
    ignore_running: bool = False
    all_outputs: bool = False
    abandon: str = ""
    extra: tuple[str, ...] = ()  # appended to the workload's command
    detach: bool = False
    give_up_after_s: float | None = None
    limit: str = ""  # which option made max_s what it is
    max_total_s: float | None = None  # over all attempts of the run
    max_cost: float | None = None  # USD
    price: float | None = None  # USD an hour
    memory_limit_mb: int | None = None
    on_success: str = "keep"  # what becomes of the pod: keep, stop, terminate
    on_failure: str = "keep"
    stop_after_s: float = 1800.0  # how long the pod waits for somebody to fetch the results before that
    on_interrupt: str = "detach"  # Ctrl-C while following: detach, or pause the run
    preserve: bool = True  # before a resume, keep links and copies of what stands in the run's places
    yes: bool = False  # send a large upload unasked
    take_over: bool = False  # follow though another controller does
    require_finite: bool = False  # a NaN or an infinity in what comes home is an error of another trainer too
    accept: tuple[str, ...] = ()  # named changes of identity that are gone on with


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One attempt, before it meets a pod."""

    root: Path  # the project's folder here
    name: str
    config: str  # relative to the root, POSIX
    attempt: str
    settings: Settings
    options: Options
    env: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # never written, shown, or put into a command

    @property
    def project(self) -> str:
        return self.settings.project or self.root.name

    @property
    def outputs(self) -> list[str]:
        return self.settings.outputs

    def words(self, command: list[str]) -> list[str]:
        """A command with its placeholders filled; `{python}` is the pod's business."""
        return [w.replace("{config}", self.config).replace("{name}", self.name) for w in command]

    @property
    def command(self) -> list[str]:
        return self.resume_command if self.options.resume else self.start_command

    @property
    def start_command(self) -> list[str]:
        """What begins the run anew, whatever this attempt does."""
        return self._command([])

    @property
    def resume_command(self) -> list[str]:
        """What goes on from the newest snapshot, for this start or for one after a crash."""
        return self._command(self.settings.resume_words or [])

    def _command(self, more: list[str]) -> list[str]:
        return self.words([*self.settings.command, *more]) + list(self.options.extra)


def make(config: Path, name: str | None, options: Options) -> Plan:
    """Everything about a run that is known before a pod is.

    Raises:
        UsageFault: the config lies outside the project, its own check refuses it, settings are wrong, or
            outputs of that name exist here and neither `--resume` nor `--fresh` says what to do.
    """
    config = config.absolute()
    if not config.is_file():
        raise UsageFault(f"{config}: no such file", fix="give the path of the experiment's config")
    root = settings_file.find_root(config.parent)
    try:
        relative = config.relative_to(root).as_posix()
        files.parts(relative)
    except ValueError as e:
        raise UsageFault(f"{config}: {e}", fix="keep the config inside the project") from None
    name = check_name(name or config.stem)
    found = settings_file.load(root, name)
    if options.resume and found.resume_words is None:
        raise UsageFault(
            f"--resume: nothing says how {shlex.join(found.command)!r} goes on from a snapshot",
            fix='say it in the settings: resume_args = ["--resume-from", "{newest}"] with the trainer\'s own flag, '
            "or resume_args = [] where it finds its newest snapshot by itself",
        )
    options = _bounded(options, root, name)
    env = {**found.env, **{k: os.environ[k] for k in SENT_ENVIRONMENT if k in os.environ}}
    attempt = time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(4)
    plan = Plan(root=root, name=name, config=relative, attempt=attempt, settings=found, options=options, env=env)
    plan.secrets.update(secret_values.collect(root, found.secrets, found.secrets_command))
    if found.check:
        _check(plan, plan.words(found.check))
    if not options.resume and not options.fresh:
        _refuse_existing(plan)
    return plan


def _bounded(options: Options, root: Path, name: str) -> Options:
    """The options with the tightest limit as their time."""
    used_s = limits.used_s(record.load(root, name)) if options.max_total_s is not None else 0.0
    max_s, limit = limits.tightest(
        options.max_s, max_total_s=options.max_total_s, used_s=used_s, max_cost=options.max_cost, price=options.price
    )
    return replace(options, max_s=max_s, limit=limit)


def check_name(name: str) -> str:
    """A run's name becomes part of paths: it may not lead out of them.

    Raises:
        UsageFault: empty, with a slash, a leading dot or dash, or a control character.
    """
    if len(name.encode()) > LONGEST_NAME:
        raise UsageFault(
            f"the name {name[:30]}… has {len(name.encode())} bytes, {LONGEST_NAME} are possible",
            fix="take a shorter one",
        )
    if not name or name[0] in ".-" or "/" in name or not name.isprintable():
        raise UsageFault(f"{name!r} can't name a run", fix="use letters, digits, dot, dash and underscore: --name NAME")
    return name


def _check(plan: Plan, command: list[str]) -> None:
    argv = [sys.executable if command[0] in ("python", "{python}") else command[0], *command[1:]]
    env = {**os.environ, **plan.env}
    try:
        done = subprocess.run(
            argv, cwd=plan.root, env=env, capture_output=True, text=True, timeout=CHECK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise UsageFault(f"the check of {plan.config} did not work: {e}", fix="mend `check` in the settings") from None
    if done.returncode == 0:
        return
    said = (done.stderr or done.stdout).strip()
    if done.returncode == CHECK_REFUSED:
        message, _, fix = said.removeprefix("error: ").partition("\nfix: ")
        raise UsageFault(message or f"{plan.config} was refused", fix=fix)
    raise UsageFault(
        f"the check of {plan.config} ended with {done.returncode}: {said[-800:] or 'no output'}",
        fix=f"run it by itself: {' '.join(argv)}",
    )


def exists_here(plan: Plan) -> list[str]:
    """What a run of that name made, as far as it is in this project; a start that failed left nothing."""
    places = [*plan.outputs, *(layout.run_file(plan.name, s) for s in layout.POD_RUN_FILES)]
    return [p for p in places if (plan.root / p).exists()]


def _refuse_existing(plan: Plan) -> None:
    if found := exists_here(plan):
        raise outputs_exist(plan.name, "here", found)


def outputs_exist(name: str, where: str, found: list[str]) -> UsageFault:
    """The refusal of a fresh start over an old run, with the ways on."""
    return UsageFault(
        f"the run {name!r} already has files {where}: {', '.join(found[:3])}{' …' if len(found) > 3 else ''}",
        fix="go on from its newest snapshot (--resume), or keep all of it aside and start anew (--fresh)",
    )
