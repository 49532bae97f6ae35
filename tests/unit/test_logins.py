"""What makes a login short changes nothing of whom it reaches and what the user has set."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remote_runner import dial, openssh, ssh
from remote_runner.agent import python_command
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


def test_a_final_word_of_the_user_or_the_system_wins_too(tmp_path: Path) -> None:
    openssh.prepare(tmp_path, ["ssh-ed25519 AAAA"])
    theirs = "Match final all\n  KexAlgorithms ecdh-sha2-nistp256\n"
    assert effective(tmp_path, theirs)["kexalgorithms"] == "ecdh-sha2-nistp256"


def test_a_temporary_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / 'a %h "b'
    folder.mkdir()
    openssh.prepare(folder, ["ssh-ed25519 AAAA"])
    where = ssh.Endpoint(host="127.0.0.1", port=1, user="root", policy=Policy(own_file=tmp_path / "k"))
    words = openssh.argv(where, folder, "true")
    asked = subprocess.run([*words[:1], "-G", *words[1:]], capture_output=True, text=True, check=True)
    assert f"userknownhostsfile {folder}/known_hosts\n" in asked.stdout


@pytest.mark.parametrize("shell", ["/bin/false", "/nowhere", ""])
def test_a_login_shell_that_is_none_is_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    test_a_pod_that_refuses_is_named_by_the_data_connection(tmp_path)


def test_a_closed_connection_reads_nothing_of_what_gets_its_descriptor(tmp_path: Path) -> None:
    """What ssh started may live on and hold its stderr; the number must not be read when it is another file's."""
    script = "import os, time; os.setsid() if os.fork() == 0 else os._exit(0); time.sleep(0.5); os.write(2, b'late')"
    process = openssh.Process([sys.executable, "-c", script + "; time.sleep(2)"], "pod")
    process.close()
    pipes = [os.pipe() for _ in range(20)]
    for _reading, writing in pipes:
        os.write(writing, b"mine")
    time.sleep(1.5)
    assert [os.read(reading, 10) for reading, _writing in pipes] == [b"mine"] * 20
    for pair in pipes:
        for fd in pair:
            os.close(fd)


def test_a_command_for_the_pod_is_one_line() -> None:
    assert "\n" not in python_command("import sys\nprint(sys.argv)", "a'b")
    said = subprocess.run(["sh", "-c", python_command("import sys\nprint(sys.argv[1:])", "a'b")],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    assert said == '["a\'b"]\n'


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


def resolved(home: Path, config: str) -> list[str]:
    """Host, user and key of `pod`, as a new process reads them from a configuration."""
    (home / ".ssh").mkdir(exist_ok=True)
    (home / ".ssh/config").write_text(config)
    code = "import sys; from pathlib import Path; from remote_runner import hostkeys, ssh, target; "
    code += "policy = hostkeys.Policy(own_file=Path('k')); "
    code += "found = ssh.resolve(target.parse('pod:22'), policy, None, None); print(found.host, found.user)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HOME": str(home)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_match_exec_is_understood(tmp_path: Path) -> None:
    assert resolved(tmp_path, MATCHING) == ["10.1.2.3", "somebody"]


def test_what_a_configuration_includes_counts_in_its_place(tmp_path: Path) -> None:
    (tmp_path / ".ssh/more").mkdir(parents=True)
    (tmp_path / ".ssh/more/a").write_text("Host pod\n  HostName 10.1.2.3\nHost other\n  User wrong\n")
    (tmp_path / ".ssh/more/loop").write_text("Include more/loop\n")
    (tmp_path / "absolute").write_text("Host pod\n  User somebody\n")
    # after an included file the line before it counts again: User is not that of `other`, nor for `elsewhere` alone
    config = f"Include more/* none/*\nHost elsewhere\n  include {tmp_path}/gone\n  User wrong\nHost *\n"
    assert resolved(tmp_path, config + f'Include "{tmp_path}/absolute"\n  User late\n') == ["10.1.2.3", "somebody"]


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
