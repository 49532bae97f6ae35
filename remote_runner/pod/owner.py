"""What can stop this pod from inside: the provider's key that works for this one machine alone, and its API.

    RunPod  RUNPOD_POD_ID, RUNPOD_API_KEY       POST api.runpod.io/graphql, podStop and podTerminate
    Vast    CONTAINER_ID, CONTAINER_API_KEY     PUT and DELETE console.vast.ai/api/v0/instances/ID/

An SSH session does not inherit them: they stand in `/etc/rp_environment` or in the environment of PID 1.
Nothing of the user's account is on the pod.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import Any, Dict, NamedTuple, Optional

API_S = 30.0
_EXPORT = re.compile(r"""^\s*(?:export\s+)?(\w+)=["']?([^"'\n]*)["']?\s*$""", re.MULTILINE)
_WORD = re.compile(r"^[A-Za-z0-9_-]{1,64}$")


class Refused(Exception):
    """The API did not do it; asked again later it may."""


class Owner(NamedTuple):
    """A provider, this machine's id there, and the key for it."""

    kind: str  # "runpod" | "vast"
    id: str
    key: str
    url: str

    def do(self, action: str) -> None:
        """`stop` (disk kept, computing no longer billed) or `terminate` (everything gone).

        Raises:
            Refused: no answer, or an answer that is no yes.
        """
        if self.kind == "runpod":
            name = {"stop": "podStop", "terminate": "podTerminate"}[action]
            fields = " { id desiredStatus }" if action == "stop" else ""
            query = f'mutation {{ {name}(input: {{podId: "{self.id}"}}){fields} }}'
            answer = self._ask("POST", f"{self.url}/graphql", {"query": query})
            if answer.get("errors") or name not in (answer.get("data") or {}):
                raise Refused(f"RunPod says: {answer.get('errors') or answer}")
            return
        method, body = {"stop": ("PUT", {"state": "stopped"}), "terminate": ("DELETE", {})}[action]
        answer = self._ask(method, f"{self.url}/api/v0/instances/{self.id}/", body)
        if answer.get("success") is not True:
            raise Refused(f"Vast says: {answer}")

    def _ask(self, method: str, url: str, body: Dict[str, Any]) -> Dict[str, Any]:
        import urllib.error  # here: loading it is a quarter of every program's start on the pod
        import urllib.request

        request = urllib.request.Request(  # noqa: S310 - the two addresses above, or a test's
            url,
            data=json.dumps(body).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {self.key}",
                "Content-Type": "application/json",
                "User-Agent": "remote-run",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=API_S) as answer:  # noqa: S310
                found = json.loads(answer.read(1 << 20).decode() or "{}")
        except urllib.error.HTTPError as e:
            raise Refused(f"{method} {url}: HTTP {e.code}") from None  # never the headers: they hold the key
        except (OSError, ValueError) as e:
            raise Refused(f"{method} {url}: {e}") from None
        return found if isinstance(found, dict) else {}


def environment() -> Dict[str, str]:
    """The container's environment, as its first process has it; ours where it can't be read."""
    found = dict(os.environ)
    with contextlib.suppress(OSError), open("/etc/rp_environment", encoding="utf-8", errors="replace") as f:
        found.update(_EXPORT.findall(f.read()))
    with contextlib.suppress(OSError), open("/proc/1/environ", "rb") as raw:
        pairs = (row.decode("utf-8", "replace").partition("=") for row in raw.read().split(b"\0"))
        found.update({name: value for name, _, value in pairs if name})
    return found


def find(env: Optional[Dict[str, str]] = None) -> Optional[Owner]:
    """Who can stop this machine; None where no key is here."""
    env = environment() if env is None else env
    for kind, id_name, key_name, url_name, url in (
        ("runpod", "RUNPOD_POD_ID", "RUNPOD_API_KEY", "RUNPOD_API_URL", "https://api.runpod.io"),
        ("vast", "CONTAINER_ID", "CONTAINER_API_KEY", "VAST_URL", "https://console.vast.ai"),
    ):
        if _WORD.match(env.get(id_name, "")) and env.get(key_name):
            return Owner(kind, env[id_name], env[key_name], env.get(url_name, url).rstrip("/"))
    return None
