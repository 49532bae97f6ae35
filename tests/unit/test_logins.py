"""What makes a login short changes nothing of whom it reaches and what the user has set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from remote_runner import dial, openssh, ssh
from remote_runner.hostkeys import Policy
from remote_runner.pod import session as sessions
from remote_runner.pod import wire

MATCHING = 'Match exec "true"\n  HostName 10.1.2.3\n  User somebody\n'


def effective(folder: Path, config: str, *words: str) -> dict[str, str]:
    """What ssh makes of our configuration, with `config` in the place of the user's."""
    (folder / "theirs").write_text(config)
    ours = (folder / "config").read_text().replace("~/.ssh/config", str(folder / "theirs"))
    (folder / "merged").write_text(ours)
    asked = subprocess.run(
        ["ssh", "-G", "-F", folder / "merged", *words, "pod"], capture_output=True, text=True, check=True
    )
    return dict(line.split(" ", 1) for line in asked.stdout.splitlines() if " " in line)


def test_the_key_exchange_is_a_cheap_one_where_the_user_says_nothing_of_it(tmp_path: Path) -> None:
    openssh.prepare(tmp_path, ["ssh-ed25519 AAAA"])
    offered = effective(tmp_path, "Host other\n  KexAlgorithms diffie-hellman-group14-sha256\n")["kexalgorithms"]
    first, *rest = offered.split(",")
    assert first in ("mlkem768x25519-sha256", "curve25519-sha256")
    assert any(name.startswith("sntrup761x25519") for name in rest)  # all others stay on offer


def test_what_the_user_has_set_wins(tmp_path: Path) -> None:
    openssh.prepare(tmp_path, ["ssh-ed25519 AAAA"])
    theirs = "Host pod\n  KexAlgorithms ecdh-sha2-nistp256\n  IdentityAgent none\n"
    found = effective(tmp_path, theirs)
    assert found["kexalgorithms"] == "ecdh-sha2-nistp256"
    assert found["identityagent"] == "none"


def test_the_socket_that_ssh_gets_is_connected_and_sends_at_once() -> None:
    ours, ssh_end = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, ours, ssh_end:
        words = [sys.executable, "-I", "-S", dial.__file__, "127.0.0.1", str(server.getsockname()[1]), "5"]
        done = subprocess.run(words, stdout=ssh_end.fileno(), check=False)
        assert done.returncode == 0
        byte, fds, _flags, _address = socket.recv_fds(ours, 1, 1)
        assert len(byte) == 1
        there, _ = server.accept()
        with socket.socket(fileno=fds[0]) as given, there:
            assert given.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            given.sendall(b"SSH-2.0")
            assert there.recv(7) == b"SSH-2.0"


def test_a_pod_that_refuses_is_named_by_the_data_connection(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    openssh.prepare(tmp_path, ["ssh-ed25519 AAAA"])
    where = ssh.Endpoint(host="127.0.0.1", port=port, user="root", policy=Policy(own_file=tmp_path / "k"))
    process = openssh.Process(openssh.argv(where, tmp_path, "true"), str(where))
    try:
        assert process.read(20) == b""
        assert f"127.0.0.1 port {port}: Connection refused" in process.stderr().decode()
    finally:
        process.close()


def test_paramiko_comes_without_what_only_match_exec_needs() -> None:
    code = "import sys; from remote_runner import ssh_library; ssh_library.load(); print('invoke' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_match_exec_is_understood(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text(MATCHING)
    code = "import sys; from pathlib import Path; from remote_runner import hostkeys, ssh, target; "
    code += "policy = hostkeys.Policy(own_file=Path('k')); "
    code += "found = ssh.resolve(target.parse('pod:22'), policy, None, None); print(found.host, found.user)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HOME": str(tmp_path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["10.1.2.3", "somebody"]


def test_a_request_that_nobody_waits_for_is_done_and_not_answered(tmp_path: Path) -> None:
    ours, pod = socket.socketpair()
    done: list[str] = []

    def note(_session: sessions.Session, ask: dict[str, str]) -> dict[str, str]:
        done.append(ask["what"])
        return {"noted": ask["what"]}

    with ours, pod:
        for what, untold in (("a", True), ("b", False)):
            ours.sendall(wire.encode({"op": "note", "what": what, "untold": untold}))
        ours.sendall(wire.encode({"op": "nonsense", "untold": True}))
        ours.shutdown(socket.SHUT_WR)
        session = sessions.Session(str(tmp_path), wire.Wire(pod.fileno(), pod.fileno()))
        assert sessions.loop(session, {"note": note}) == 0
        answers = wire.Decoder()
        answers.feed(ours.recv(1 << 16))
        first = answers.next()
        assert first is not None
        assert first[0]["noted"] == "b"
        assert answers.next() is None
    assert done == ["a", "b"]
