"""Look at a training repository that has never heard of this tool: what starts, configures, resumes it.

Sources are parsed, never run. What can't be seen stays empty; nothing here is a decision (init.py writes them).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = ("train.py", "main.py", "run.py", "finetune.py", "pretrain.py", "train.sh", "run.sh")
CONFIG_FOLDERS = ("configs", "config", "conf", "experiments", "exp")
CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
NOT_CONFIGS = ("pyproject.toml", "package.json", "remote-run.toml", "environment.yml", "environment.yaml", "uv.toml")
OUTPUT_KEYS = (
    *("output_dir", "out_dir", "outdir", "save_dir", "checkpoint_dir", "ckpt_dir", "log_dir", "run_dir", "dirpath"),
    *("default_root_dir", "output_folder", "workdir", "work_dir", "adapter_path", "exp_dir", "results_dir"),
)
_OUTPUT = re.compile(
    rf"""^[\s{{,]*["']?(?:{"|".join(OUTPUT_KEYS)})["']?\s*[:=]\s*["']?([\w./{{}}$-]+)["']?\s*[,}}]?\s*(?:\#.*)?$""",
    re.MULTILINE,
)
_SHELL_OUTPUT = re.compile(r"""(?:^|\s)(?:OUT\w*|SAVE_DIR|CKPT_DIR)=["']?([\w./-]+)""", re.MULTILINE)
_RESUME_WORDS = ("resume", "resume_from_checkpoint", "resume_from", "resume_path", "ckpt_path", "load_checkpoint")
_CONFIG_WORDS = ("config", "cfg", "config_file", "config_path", "conf")
_DEPTH = 3


@dataclass(frozen=True)
class Flag:
    """An argument that a script declares."""

    name: str  # as it is written: `--resume`, or `config` where it is positional
    takes_value: bool
    default: object = None

    @property
    def word(self) -> str:
        return self.name.lstrip("-").replace("-", "_").lower()

    @property
    def positional(self) -> bool:
        return not self.name.startswith("-")


@dataclass
class Repo:
    """What a repository shows of itself; paths are relative and POSIX."""

    root: Path
    scripts: list[str] = field(default_factory=list)  # the likeliest first
    configs: list[str] = field(default_factory=list)
    git: bool = False
    flags: list[Flag] = field(default_factory=list)  # of the likeliest script
    imports: set[str] = field(default_factory=set)
    text: str = ""  # the script's source

    def flag(self, words: tuple[str, ...]) -> Flag | None:
        """The declared argument that has one of these names, in their order."""
        return next((f for word in words for f in self.flags if f.word == word), None)

    @property
    def command(self) -> list[str]:
        """How the script is started; empty where there is none."""
        if not self.scripts:
            return []
        script = self.scripts[0]
        if script.endswith(".sh"):
            return ["bash", script, *(["{config}"] if re.search(r"\$\{?1|\$@|\$\*", self.text) else [])]
        start = ["python", script]
        if (self.root / script).parent.joinpath("__init__.py").exists() and re.search(r"^from \.", self.text, re.M):
            start = ["python", "-m", script.removesuffix(".py").replace("/", ".")]
        config = self.flag(_CONFIG_WORDS)
        if config is not None:
            return [*start, *([] if config.positional else [config.name]), "{config}"]
        if "HfArgumentParser" in self.text or re.search(r"sys\.argv\[1\]", self.text):
            return [*start, "{config}"]
        return start

    @property
    def resume_args(self) -> list[str]:
        """How it goes on; empty where it declares no way."""
        found = self.flag(_RESUME_WORDS)
        if found is not None:
            return [found.name, "{newest}"] if found.takes_value else [found.name]
        if "HfArgumentParser" in self.text and "resume_from_checkpoint" in self.text:
            return ["--resume_from_checkpoint", "{newest}"]
        if self.scripts and self.scripts[0].endswith(".sh"):
            said = re.search(r"(--resume[\w-]*)", self.text)
            return [said.group(1)] if said else []
        return []

    @property
    def pause(self) -> str:
        if "remote_runner.checkpoint" in self.text:
            return "contract"
        found = re.search(r"signal\.signal\(\s*(?:signal\.)?(SIGUSR1|SIGTERM|SIGINT)", self.text)
        return found.group(1) if found else "none"

    @property
    def preset(self) -> str:
        """Whose snapshots it most likely writes."""
        for name, modules in (("hf", {"transformers", "trl"}), ("lightning", {"lightning", "pytorch_lightning"})):
            if modules & self.imports:
                return name
        return "torch" if "torch" in self.imports else ""

    @property
    def frameworks(self) -> list[str]:
        found = {"torch"} if self.preset else set()
        return sorted(found | ({"torch", "mlx", "jax", "tensorflow"} & self.imports))


def look(root: Path, script: str = "", paths: list[str] | None = None) -> Repo:
    """Look at a repository.

    Args:
        script: the one that trains, where the user says so.
        paths: the files to look at; those that would travel.
    """
    paths = [p for p in paths or [] if p.count("/") < _DEPTH]
    scripts = [script] if script else sorted(filter(None, (_as_script(p) for p in paths)), key=_likely)
    found = Repo(root, scripts, sorted(filter(_is_config, paths), key=_in_folder_first), (root / ".git").exists())
    if scripts:
        found.text = _read(root / scripts[0])
        if scripts[0].endswith(".py"):
            _read_python(found)
    return found


def outputs(repo: Repo) -> list[str]:
    """Where it writes, as `{name}` patterns: from its configs, its arguments' defaults, its source."""
    for config in repo.configs:
        stem = Path(config).stem
        found = [_named(v, stem) for v in _OUTPUT.findall(_read(repo.root / config))]
        if kept := _inside(found):
            return kept
    declared = repo.flag(OUTPUT_KEYS)
    if declared is not None and isinstance(declared.default, str) and (kept := _inside([declared.default])):
        return kept
    pattern = _SHELL_OUTPUT if repo.scripts and repo.scripts[0].endswith(".sh") else _OUTPUT
    return _inside(pattern.findall(repo.text))


def _named(value: str, stem: str) -> str:
    return "/".join("{name}" if piece == stem else piece for piece in value.split("/"))


def _inside(found: list[str]) -> list[str]:
    """Plain relative folders, each once, none inside another."""
    plain = [v.removeprefix("./").rstrip("/") for v in found]
    plain = [v for v in plain if v and not v.startswith(("/", "~", "..", "$")) and not re.search(r"\$|\{(?!name\})", v)]
    return [v for v in dict.fromkeys(plain) if not any(v.startswith(o + "/") for o in plain)]


def _as_script(path: str) -> str | None:
    name = path.rsplit("/", 1)[-1]
    if name in SCRIPTS or (name.endswith((".py", ".sh")) and re.match(r"(train|finetune|pretrain|run)[_-]", name)):
        return None if path.startswith(("tests/", "docs/")) else path
    return None


def _likely(path: str) -> tuple[int, int, str]:
    name = path.rsplit("/", 1)[-1]
    return path.count("/"), SCRIPTS.index(name) if name in SCRIPTS else len(SCRIPTS), path


def _is_config(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if not name.endswith(CONFIG_SUFFIXES) or name in NOT_CONFIGS or name.startswith("."):
        return False
    return folder.split("/")[0] in CONFIG_FOLDERS if folder else bool(re.match(r"(config|cfg|train|exp)", name))


def _in_folder_first(path: str) -> tuple[bool, str]:
    return "/" not in path, path


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:1_000_000]
    except OSError:
        return ""


def _read_python(repo: Repo) -> None:
    try:
        tree = ast.parse(repo.text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            repo.imports.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            repo.imports.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call):
            repo.flags += _flags(node)


def _flags(call: ast.Call) -> Iterator[Flag]:
    """`parser.add_argument(…)` and `click.option(…)`, `click.argument(…)`."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if function not in ("add_argument", "option", "argument"):
        return
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    given = {k.arg: k.value for k in call.keywords if k.arg}
    action = given.get("action")
    switches = isinstance(action, ast.Constant) and str(action.value).startswith(("store_true", "store_false"))
    switches = switches or "is_flag" in given
    default = given.get("default")
    long = [n for n in names if n.startswith("--")] or names
    if long:
        yield Flag(long[0], not switches, default.value if isinstance(default, ast.Constant) else None)
