"""Files that run code when they are unpickled; what they run only leaves a file MARK behind."""

import builtins
import io
import os
import pickle
import subprocess
import zipfile

import torch


class Call:
    """Unpickling this calls something; here always something that leaves a file behind."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def in_zip(pickled):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def hostile(folder):
    """(name, what it wants to call) of files written to the folder, every one of which runs code when unpickled."""
    mark = str(folder / "MARK")
    touch = Call(builtins.open, mark, "w")
    made = {}
    for protocol in range(6):
        made[f"bare{protocol}.pt"] = (pickle.dumps({"model": touch}, protocol), "io.open")
    made["zip.pt"] = (in_zip(pickle.dumps({"step": 1, "model": touch}, 2)), "io.open")
    made["zip4.pt"] = (in_zip(pickle.dumps({"step": 1, "model": touch}, 4)), "io.open")
    made["system.pt"] = (in_zip(pickle.dumps(Call(os.system, f"touch {mark}"), 2)), "posix.system")
    made["popen.pt"] = (in_zip(pickle.dumps(Call(subprocess.Popen, ["touch", mark]), 2)), "subprocess.Popen")
    made["eval.pt"] = (in_zip(pickle.dumps(Call(eval, f"open({mark!r}, 'w')"), 2)), "builtins.eval")
    made["renamed.safetensors"] = (pickle.dumps({"w": touch}, 2), "io.open")
    torch.save({"model": {"w": torch.ones(2)}, "note": touch}, folder / "with_tensors.pt")
    made["with_tensors.pt"] = ((folder / "with_tensors.pt").read_bytes(), "io.open")
    torch.save({"w": torch.ones(2), "note": touch}, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    made["legacy.pt"] = ((folder / "legacy.pt").read_bytes(), "io.open")
    for name, (content, _) in made.items():
        (folder / name).write_bytes(content)
    return {name: called for name, (_, called) in made.items()}
