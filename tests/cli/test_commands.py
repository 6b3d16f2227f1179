"""`msk-auth`: generate, inspect, rules, routes, and what holds for all of them."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from msk_auth import KeyFormat, __version__, cli
from msk_auth.cli import main

ROOT = Path(__file__).parents[2]
VECTORS = re.findall(
    r"^\| `(msk_\w{51})` \| valid",
    (ROOT / "docs/reference/key-format.md").read_text("utf-8"),
    re.MULTILINE,
)
KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
SECRET = "000000000000000000000000000000002uGo9O"


@dataclass
class Ran:
    """What became of a command."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with these arguments and this input."""

    def run(*arguments: object, stdin: str | bytes = b"") -> Ran:
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        try:
            code = main([str(each) for each in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


# generate


def test_generate_makes_keys_that_parse(run: Run) -> None:
    ran = run("generate", "--prefix", "acme", "--count", "3")
    keys = ran.out.split()
    assert (ran.code, len(set(keys)), ran.err) == (0, 3, "")
    for key in keys:
        KeyFormat("acme").parse(key)
    KeyFormat().parse(run("generate").out.strip())


@pytest.mark.parametrize("count", ["", "0", "-1", "x", "1.5", "100001", "²"])
def test_generate_makes_a_sensible_number(run: Run, count: str) -> None:
    ran = run("generate", "--count", count)
    assert (ran.code, ran.out) == (2, "")
    assert "a number from 1 to 100000" in ran.err


def test_an_invalid_prefix_is_refused(run: Run) -> None:
    ran = run("generate", "--prefix", "Acme!")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("msk-auth: The key prefix 'Acme!' is not valid.")


# inspect


@pytest.mark.parametrize("key", VECTORS)
def test_inspect_a_key(run: Run, key: str) -> None:
    ran = run("inspect", stdin=f" {key}\n")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "well-formed  yes",
        f"id           {key[4:16]}",
        f"shown as     {key[:17]}…",
    ]


def test_inspect_asks_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda _prompt: KEY)
    assert main(["inspect"]) == 0
    assert f"id           {KEY[4:16]}\n" in capsys.readouterr().out


def test_inspect_nothing(run: Run) -> None:
    ran = run("inspect", stdin=" \n")
    assert (ran.code, ran.err) == (2, "msk-auth: the standard input has no key.\n")


def test_inspect_a_terminal_whose_input_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end_input(_prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", end_input)
    assert main(["inspect"]) == 2
    assert capsys.readouterr().err == "msk-auth: the standard input has no key.\n"


@pytest.mark.parametrize(
    "key", [KEY[:-1], KEY[:-1] + "P", KEY.replace("_", ""), f"Bearer {KEY}", KEY.encode() + b"\xff"]
)
def test_inspect_a_malformed_key_prints_nothing_of_it(run: Run, key: str | bytes) -> None:
    ran = run("inspect", stdin=key)
    assert (ran.code, ran.out, ran.err) == (1, "well-formed  no\n", "")


def test_inspect_a_key_of_another_prefix(run: Run) -> None:
    acme = KeyFormat("acme").generate()
    assert f"id           {acme.id}" in run("inspect", "--prefix=acme", stdin=acme.reveal()).out
    assert run("inspect", stdin=acme.reveal()).code == 1


# rules


def near_misses(key: str) -> list[str]:
    return [key[:-1], key[:-6] + "5" + key[-5:], key.replace("_", "-"), "x" + key[1:], f"{key}x"]


def finds(pattern: str, text: str) -> str | None:
    match = re.search(pattern.replace(r"\z", r"\Z"), text)
    return match and match[1]


@pytest.mark.parametrize("key", VECTORS)
def test_rules_find_the_vectors(run: Run, key: str) -> None:
    (gitleaks,) = tomllib.loads(run("rules", "gitleaks").out)["rules"]
    (trufflehog,) = yaml.safe_load(run("rules", "trufflehog").out)["detectors"]
    github = json.loads(run("rules", "github").out)
    patterns = [
        gitleaks["regex"],
        trufflehog["regex"]["key"],
        f"(?:{github['before_secret']})({github['secret_format']})(?:{github['after_secret']})",
    ]
    assert gitleaks["secretGroup"] == 1
    assert gitleaks["keywords"] == trufflehog["keywords"] == ["msk_"]
    for pattern in patterns:
        for text in (key, f'token = "{key}"', f"\n{key}\n"):
            assert finds(pattern, text) == key
        assert not any(finds(pattern, miss) for miss in near_misses(key))


def test_rules_of_another_prefix(run: Run) -> None:
    github = json.loads(run("rules", "github", "--prefix", "acme").out)
    assert re.fullmatch(github["secret_format"], github["test_string"])
    KeyFormat("acme").parse(github["test_string"])
    for scanner in ("gitleaks", "trufflehog"):
        assert "msk" not in run("rules", scanner, "--prefix", "acme").out


def test_the_guides_configuration_of_gitleaks_is_well_formed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "leaked-keys.md").read_text("utf-8")
    script = re.findall(r"```bash\n(printf .*?)```", page, re.DOTALL)[0]
    allowed = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={"PATH": path}, check=True)
    written = (tmp_path / ".gitleaks.toml").read_text("utf-8")
    configuration = tomllib.loads(f"{written}\n{allowed}")
    assert configuration["extend"] == {"useDefault": True}
    (rule,) = configuration["rules"]
    assert rule["id"] == "msk-api-key"
    (allowlist,) = rule["allowlists"]
    (pattern,) = allowlist["regexes"]
    assert all(re.search(pattern, key) for key in VECTORS)
    assert re.search(pattern, KeyFormat().generate().reveal()) is None


# routes

APPLICATION = """
print("noise")
from flask import Flask

app = Flask(__name__, static_folder=None)
app.add_url_rule("/a", "a", lambda: "", methods=["GET"])

class Holder:
    inner = app

def make():
    return app

def broken():
    raise RuntimeError("no\\ndatabase, but {key}")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("flask")
    name = f"application_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(APPLICATION.replace("{key}", KEY))
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("target", [["{}:app"], ["{}:Holder.inner"], ["--factory", "{}:make"]])
def test_routes_as_a_table(run: Run, module: str, target: list[str]) -> None:
    ran = run("routes", *(each.format(module) for each in target))
    assert ran.code == 1
    assert ran.out.splitlines() == [
        "METHODS  PATH  POLICY      ENDPOINT",
        "GET      /a    undeclared  a",
        "",
        "1 routes, 1 undeclared, 0 flagged",
    ]
    assert "GET,HEAD,OPTIONS /a: declares no policy" in ran.err


def test_no_route_controls_the_terminal(run: Run, module: str) -> None:
    source = Path(f"{module}.py")
    source.write_text(source.read_text().replace('"/a", "a"', f'"/\\x1b[2J{KEY}", "a"'))
    ran = run("routes", f"{module}:app")
    assert "/\\x1b[2Jmsk_AAAAAAAAAAAA_…" in ran.out
    assert "/\\x1b[2Jmsk_AAAAAAAAAAAA_…: declares no policy" in ran.err
    assert "\x1b" not in ran.out + ran.err


def test_routes_that_the_application_guards_itself(run: Run, module: str) -> None:
    ran = run("routes", f"{module}:app", "--own-guard", "/a")
    assert ran.code == 0
    assert "GET      /a    the application's own guard  a" in ran.out
    assert "1 routes, 0 undeclared, 0 flagged" in ran.out


def test_routes_as_json(run: Run, module: str) -> None:
    ran = run("routes", f"{module}:app", "--public", "/a", "--format", "json")
    assert ran.code == 0
    assert json.loads(ran.out) == {
        "ok": True,
        "routes": [
            {
                "path": "/a",
                "methods": ["GET", "HEAD", "OPTIONS"],
                "kind": "route",
                "endpoint": "a",
                "access": "public",
                "permissions": [],
                "max_age_seconds": None,
                "shadowed_by": None,
                "problems": [],
            }
        ],
        "unused": [],
    }


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (
            """
from fastapi import FastAPI
app = FastAPI()
app.get("/tasks/{task_id}")(lambda task_id: None)
@app.get("/tasks/mine")
def mine(): ...
""",
            [
                "GET      /tasks/{task_id}          undeclared  <lambda>",
                "GET      /tasks/mine               undeclared  mine (never reached: /tasks/{task_id} is before it)",
                "GET      /openapi.json and 3 more  undeclared  documentation",
            ],
        ),
        (
            """
from litestar import Litestar, get
from msk_auth import AsyncAuthenticator
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore
async def find_owner(owner_id): ...
auth = LitestarAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner))
@get("/tasks", guards=[auth.require()])
async def tasks() -> None: ...
app = Litestar([tasks], plugins=[auth])
""",
            ["GET      /tasks", "GET      /schema"],
        ),
    ],
    ids=["fastapi", "litestar"],
)
def test_routes_without_the_noise_of_a_framework(
    run: Run, tmp_path: Path, source: str, rows: list[str]
) -> None:
    pytest.importorskip(source.split()[1])
    name = f"noise_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    table = run("routes", f"{name}:app", "--app-dir", tmp_path).out.split("\n\n")[0]
    for found, row in zip(table.splitlines()[1:], rows, strict=True):
        assert found.startswith(row)


def test_routes_in_another_folder(
    run: Run, module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = list(sys.path)
    assert run("routes", f"{module}:app", "--app-dir", tmp_path, "--public", "/a").code == 0
    assert sys.path == path


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (["nothing"], "'nothing' is not of the form MODULE:APP, such as main:app."),
        (["{}:"], "is not of the form"),
        (["no_such_module_here:app"], "ModuleNotFoundError: No module named 'no_such_module_here'"),
        (["{}:missing"], "AttributeError"),
        (["--factory", "{}:broken"], "RuntimeError: no database, but msk_AAAAAAAAAAAA_…"),
        (["{}:make"], "The routes of builtins.function cannot be read."),
    ],
)
def test_an_application_that_does_not_load_is_reported_in_one_line(
    run: Run, module: str, target: list[str], message: str
) -> None:
    ran = run("routes", *(each.format(module) for each in target))
    (line,) = [line for line in ran.err.splitlines() if line != "noise"]
    assert (ran.code, ran.out) == (2, "")
    assert line.startswith("msk-auth: ")
    assert message in line


# all of them


def test_the_version(run: Run) -> None:
    assert run("--version").out == f"msk-auth {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["rules"], ["rules", "x"]])
def test_wrong_usage_is_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


def test_an_interrupted_command_prints_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_write_line", interrupt)
    ran = run("generate")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = [sys.executable, "-c", "import sys; from msk_auth.cli import main; sys.exit(main())"]
    with subprocess.Popen(
        [*command, "generate", "--count", "50000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 2


def test_output_that_cannot_be_written_is_2(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sys.stdout.write", fail)
    ran = run("generate")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"msk-auth: [Errno {errno.ENOSPC}] No space left on device\n"


def test_a_terminal_that_cannot_show_a_character_gets_its_number() -> None:
    command = "import sys; from msk_auth.cli import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", command, "inspect"],
        input=KEY.encode(),
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert b"msk_AAAAAAAAAAAA_\\u2026\n" in ran.stdout
