"""What all commands share: errors become a message, a fix and an exit code; names of commands load lazily."""

from __future__ import annotations

import difflib
import importlib
import math
import re
import sys
import traceback
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from remote_runner.report import Report

from remote_runner import durations
from remote_runner.errors import RunnerError

INTERNAL, DETACHED, USAGE = 70, 130, 2


def say(text: str) -> None:
    """One line of the talk: on stderr, so that stdout carries results alone."""
    print(text, file=sys.stderr)


def complain(error: RunnerError) -> None:
    """The message and what to do, on stderr."""
    print(f"error: {error}", file=sys.stderr)
    if error.fix:
        print(f"fix: {error.fix}", file=sys.stderr)


def run_cli(command: click.Command, argv: list[str]) -> int:
    """Run the command line; every end is one of the design's exit codes, and never 1 by accident."""
    try:
        done = command.main(args=argv, prog_name="remote-run", standalone_mode=False)
    except RunnerError as e:
        complain(e)
        return e.exit_code
    except click.ClickException as e:
        e.show()
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return DETACHED
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as e:  # noqa: BLE001 - the last wall: an unforeseen fault must not look like the workload's
        if "-v" in argv or "--verbose" in argv:
            traceback.print_exc()
        print(f"error: internal: {type(e).__name__}: {e}; nothing is promised about the run", file=sys.stderr)
        print("fix: look at it with remote-run attach; the same command with -v shows where it broke", file=sys.stderr)
        return INTERNAL
    return done if isinstance(done, int) else 0


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used; an unknown first word begins the default one."""

    def __init__(self, *args: Any, commands_in: dict[str, tuple[str, str]], default: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_in, self._default = commands_in, default

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_in:
            return None
        module, attribute = self._commands_in[cmd_name]
        found = getattr(importlib.import_module(f"remote_runner.cli.{module}"), attribute)
        assert isinstance(found, click.Command)
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {"-h", "--help", "--version"}
        if args and args[0] not in own and args[0] not in self._commands_in:
            self._refuse_typo(ctx, args[0])
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def _refuse_typo(self, ctx: click.Context, word: str) -> None:
        """A bare word that is nearly a command is one: targets have a port, a user or a dot, or are aliases."""
        near = difflib.get_close_matches(word, self._commands_in, n=1, cutoff=0.7)
        if near and word.isalpha():
            raise click.UsageError(f"no command {word!r}; did you mean {near[0]!r}?", ctx)


class Hours(click.ParamType[float]):
    """Hours above zero, as `12`, `0.5`, `90m` or `2h`; click's own float range takes nan and inf."""

    name = "hours"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            text = str(value).strip()
            hours = durations.parse(text) / 3600 if text[-1:] in tuple("smhd") else float(text)
        except ValueError:
            hours = math.nan
        if not 0 < hours < 24 * 366:
            self.fail(f"{value!r} is no number of hours above 0: write 12, 0.5, 90m or 2h", param, ctx)
        return hours


class Money(click.ParamType[float]):
    """An amount of USD above zero."""

    name = "money"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            amount = float(value)
        except ValueError:
            amount = math.nan
        if not 0 < amount < 1e6:
            self.fail(f"{value!r} is no amount above 0: write 5 or 0.40", param, ctx)
        return amount


class HostKey(click.ParamType[str]):
    """`SHA256:` and 43 letters, as ssh-keygen and providers show it; judged before anything is connected."""

    name = "fingerprint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if text and not re.fullmatch(r"(?:SHA256:)?[A-Za-z0-9+/]{43}=?", text):
            old = ", but the old MD5 form" if text.count(":") >= 15 else ""
            self.fail(f"{text!r} is no SHA-256 fingerprint{old}: it looks like SHA256: and 43 letters", param, ctx)
        return text


class RemoteDir(click.ParamType[str]):
    """A folder on the pod that means the same whatever folder a login begins in."""

    name = "folder"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text and not text.startswith(("/", "~/")):
            self.fail(f"{text!r} is relative, and to what is not said: write /workspace/{text} or ~/{text}", param, ctx)
        return text


class Duration(click.ParamType[float]):
    """`90s`, `15m`, `2h`; seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return durations.parse(str(value))
        except ValueError as e:
            self.fail(str(e), param, ctx)


def show_report(report: Report, as_json: bool) -> int:
    """The result on stdout, and as the last line of the talk what becomes of the pod's bill."""
    click.echo(report.to_json() if as_json else report.summary())
    print(report.pod_end, file=sys.stderr)
    return report.exit_code


def access_options(command: Any) -> Any:
    """The options that say how to reach and trust a pod."""
    for option in reversed(
        (
            click.option("--user", help="Login on the pod; default: the target's, ~/.ssh/config's, else root."),
            click.option("--identity", "-i", type=click.Path(), help="Private key file."),
            click.option("--host-key", type=HostKey(), default="", metavar="SHA256:…", help="The only key to accept."),
            click.option("--accept-new-host-key", is_flag=True, help="Accept and pin a key that is not known yet."),
            click.option(
                "--remote-dir",
                type=RemoteDir(),
                default="",
                help="Folder there; default: /workspace, or home.",
            ),
        )
    ):
        command = option(command)
    return command
