"""The life of a run, as one sentence.

    read -> preflight -> guard -> (resume) -> upload -> launch -> follow -> last backup -> download -> report

Each verb is a module of that name; starting.py leads to the armed deadline, ending.py from there home. Whatever
ends the controller, the run goes on and `attach` takes it up again.
"""

from __future__ import annotations

from remote_runner import (
    changes,
    checking,
    ending,
    guard,
    preflight,
    pushing,
    record,
    ssh,
    starting,
    stores,
    upload,
    vault,
)
from remote_runner import plan as plans
from remote_runner.access import Access
from remote_runner.errors import NotStarted, UsageFault
from remote_runner.follow import Running
from remote_runner.plan import Plan
from remote_runner.record import Journal
from remote_runner.report import Report
from remote_runner.starting import Start
from remote_runner.vault import Place
from remote_runner.view import View


def run(access: Access, plan: Plan, view: View, only_from: str = "") -> Report | None:
    """Take an experiment to a pod and bring its results home.

    Returns:
        The report; None where the run was detached once its deadline was armed.

    Raises:
        RunnerError: each class with its exit code; nothing is lost on any of them.
        KeyboardInterrupt: Ctrl-C while following; the run goes on.
    """
    start = Start(access, plan, _store(plan), Journal(plan.root, plan.name), view.tell, only_from)
    with record.only_controller(plan.root, plan.name):
        try:
            run, report = _begin(start)
        except KeyboardInterrupt:
            if start.asked:  # the pod may have started it: that is for attach to find out
                raise
            raise NotStarted("interrupted before the launch", fix="run the command again") from None
        except OSError as e:
            if start.asked:
                raise
            raise NotStarted(
                f"{e.filename or plan.root}: {e.strerror or e}", fix="make room, or mend it, here"
            ) from None
        if plan.options.detach:
            run.link.close()
            run.backups.close()
            if not plan.settings.backup.push:
                view.tell("until then nothing is copied off the pod, unless cron does it: remote-run backup --help")
            view.tell(f"detached; come back with: remote-run attach {access.words} {plan.name}")
            return None
        return ending.finish(run, report, start.journal, view)


def _begin(start: Start) -> tuple[Running, Report]:
    """What is refused before any connection, then all that leads to the armed deadline."""
    plan = start.plan
    changes.refuse_unknown(plan)
    _prove(start.store, plan)
    if plan.settings.backup.push:
        pushing.refuse_unreachable(starting.backup_to(plan))
    _refuse_existing_in_store(start)
    start.journal.event("start", attempt=plan.attempt, target=start.access.target, resume=plan.options.resume)
    return starting.begin(start)


def _store(plan: Plan) -> Place:
    opened = stores.open_store(starting.backup_to(plan), plan.root)
    return Place(store=opened, project=plan.project, name=plan.name, keep=plan.settings.backup.keep)


def _prove(store: Place, plan: Plan) -> None:
    """The store must take a byte before anything is moved or started.

    Raises:
        UsageFault: it does not.
    """
    key = f"{store.project}/{store.name}/probe-{plan.attempt}"
    try:
        store.store.put(key, b"")
        store.store.delete(key)
    except OSError as e:
        raise UsageFault(
            f"the store {starting.backup_to(plan)} can't be written: {e.strerror or e}",
            fix="name another one: --backup-to URL",
        ) from None


def _refuse_existing_in_store(start: Start) -> None:
    plan = start.plan
    if not plan.options.resume and not plan.options.fresh and (found := vault.asked(start.store)):
        raise plans.outputs_exist(plan.name, "in the store", [m["id"] for m in found])


def dry_run(access: Access, plan: Plan, view: View) -> str:
    """All checks, and a look at what the guard would say; nothing changes here or on the pod.

    Returns:
        What a run would do, in one line.
    """
    code = upload.collect(plan)
    with ssh.connect(access.endpoint(plan.root), view.tell) as pod:
        facts = preflight.check(pod, plan, code.size, starting.snapshot_bytes(plan), view.tell)
        guard.look(pod, plan, facts, view.tell)
    return (
        f"would send {len(code.items)} files ({checking.shown_size(code.size)}) to {facts.root} on {pod.endpoint}, "
        f"then run: {' '.join(plan.command)}"
    )
