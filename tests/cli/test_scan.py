"""`msk-auth scan`: files, folders, input and git's history; what it prints, and what it never does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import KEY, MASK, SECRET, Run, Terminal

from msk_auth import KeyFormat, __version__
from msk_auth.cli import _scan
from msk_auth.testing import FrozenClock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be scanned, which is the current one."""
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def test_a_clean_folder(run: Run, folder: Path) -> None:
    (folder / "a.txt").write_text("nothing\n")
    (folder / "empty").touch()
    ran = run("scan", ".")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_keys_are_named_by_path_line_and_column(run: Run, folder: Path) -> None:
    (folder / "b").mkdir()
    (folder / "b" / "c.env").write_text(f"\nKEY={KEY}\n")
    (folder / "a.bin").write_bytes(b"\0\xff" + KEY.encode())
    ran = run("scan", ".")
    assert ran.code == 1
    assert ran.out.splitlines() == [f"a.bin:1:1: {MASK}", f"b/c.env:2:5: {MASK}"]
    assert ran.err == "msk-auth: 1 key(s) in 2 place(s). Revoke them, then take them out.\n"


@pytest.mark.parametrize("form", ["text", "json", "sarif"])
def test_no_output_holds_a_secret(run: Run, folder: Path, form: str) -> None:
    # The name of a file can be a key as well.
    (folder / f"{KEY}.txt").write_text(KEY)
    ran = run("scan", "--format", form, ".", f"missing-{KEY}")
    assert ran.code == 1
    assert "AAAAAAAAAAAA" in ran.out
    assert SECRET not in ran.out + ran.err


def test_names_cannot_command_the_terminal(run: Run, folder: Path) -> None:
    (folder / "a\x1b[2J\n.txt").write_text(KEY)
    (folder / os.fsdecode(b"\xff")).write_text(KEY)
    assert run("scan", ".").out.splitlines() == [
        rf"a\x1b[2J\n.txt:1:1: {MASK}",
        rf"\udcff:1:1: {MASK}",
    ]


def test_other_prefixes_and_ignored_ids(run: Run, folder: Path) -> None:
    acme = KeyFormat("acme").generate()
    (folder / "a").write_text(f"{KEY} {acme.reveal()}")
    assert run("scan", "a").out == f"a:1:1: {MASK}\n"
    assert run("scan", "--prefix", "acme", "a").out == f"a:1:57: {acme.mask}\n"
    both = run("scan", "--prefix", "acme", "--prefix", "msk", "--ignore", "AAAAAAAAAAAA", "a")
    assert both.out == f"a:1:57: {acme.mask}\n"
    assert run("scan", "--ignore", "AAAAAAAAAAAA", "a").code == 0
    assert run("scan", "--prefix", "No!", "a").code == 2


def test_links_are_followed_where_they_are_named_only(run: Run, folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.write_text(KEY)
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    assert run("scan", ".").code == 0
    assert run("scan", "link").out == f"link:1:1: {MASK}\n"


def test_what_is_no_file_is_not_read(run: Run, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert run("scan", ".").code == 0


def test_gits_own_folder_is_left_out(run: Run, folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text(KEY)
    assert run("scan", ".").code == 0
    assert run("scan", ".git").code == 1


def test_standard_input(run: Run) -> None:
    ran = run("scan", "-", stdin=f"x\n{KEY}")
    assert (ran.code, ran.out) == (1, f"standard input:2:1: {MASK}\n")


def test_an_unreadable_file_is_reported_and_the_rest_is_scanned(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("x")
    (folder / "z").write_text("nothing")
    (folder / "closed").mkdir()
    real_open, real_scandir = Path.open, os.scandir

    def opened(path: Path, *more: Any, **options: Any) -> Any:
        if path.name == "a":
            raise PermissionError(13, "Permission denied")
        return real_open(path, *more, **options)

    def scanned(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real_scandir(path)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(os, "scandir", scanned)
    ran = run("scan", ".", "missing", "--format", "json")
    document = json.loads(ran.out)
    assert ran.code == 2
    assert document["errors"] == [
        {"path": "a", "reason": "Permission denied"},
        {"path": "./closed", "reason": "Permission denied"},
        {"path": "missing", "reason": "No such file or directory"},
    ]
    assert document["scanned"] == {"files": 2, "bytes": 7}
    assert "msk-auth: missing: No such file or directory\n" in ran.err
    # A key counts for more than a file that could not be read.
    (folder / "z").write_text(KEY)
    assert run("scan", ".", "missing").code == 1


def test_a_file_that_goes_away_while_the_folder_is_read(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        name = path = "gone"

        def is_dir(self, **_: object) -> bool:
            raise FileNotFoundError(2, "No such file or directory")

    class Listing(list[Gone]):
        def __enter__(self) -> Listing:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", lambda _: Listing([Gone()]))
    assert run("scan", ".").err == "msk-auth: gone: No such file or directory\n"


def test_a_path_that_cannot_be_one(run: Run) -> None:
    ran = run("scan", "a\0b")
    assert (ran.code, ran.err) == (2, "msk-auth: a\\x00b: not a valid path\n")


def test_json(run: Run, folder: Path) -> None:
    (folder / "a").write_text(KEY)
    assert json.loads(run("scan", "--format", "json", ".").out) == {
        "findings": [
            {
                "path": "a",
                "line": 1,
                "column": 1,
                "key_id": "AAAAAAAAAAAA",
                "mask": MASK,
                "commit": None,
                "object": None,
            }
        ],
        "errors": [],
        "scanned": {"files": 1, "bytes": 55},
    }


def test_sarif_has_the_shape_that_services_demand(run: Run, folder: Path) -> None:
    (folder / "a b.txt").write_text(f"\n {KEY}")
    log = json.loads(run("scan", "--format", "sarif", ".", folder / "a b.txt", "missing").out)
    # SARIF 2.1.0: 3.13 the log, 3.14 the run, 3.19 the driver, 3.20 the invocation, 3.27 the results.
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    (sarif,) = log["runs"]
    driver = sarif["tool"]["driver"]
    assert (driver["name"], driver["semanticVersion"]) == ("msk-auth", __version__)
    assert sarif["columnKind"] == "unicodeCodePoints"
    (invocation,) = sarif["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [each["message"]["text"] for each in invocation["toolExecutionNotifications"]] == [
        "missing: No such file or directory"
    ]
    first, second = sarif["results"]
    assert driver["rules"][first["ruleIndex"]]["id"] == first["ruleId"]
    assert first["level"] == "error"
    assert MASK in first["message"]["text"]
    (location,) = first["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20b.txt"},
        "region": {"startLine": 2, "startColumn": 2},
    }
    absolute = second["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert absolute == (folder / "a b.txt").as_uri()
    assert first["partialFingerprints"] == second["partialFingerprints"]


def test_nothing_found_is_a_sarif_log_too(run: Run, folder: Path) -> None:
    ran = run("scan", "--format", "sarif", ".")
    assert (ran.code, json.loads(ran.out)["runs"][0]["results"]) == (0, [])


# Git.


def git(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    identity = {
        f"GIT_{who}_{what}": value
        for who in ("AUTHOR", "COMMITTER")
        for what, value in {"NAME": "a", "EMAIL": "a@example.org"}.items()
    }
    result = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment | identity | {"GIT_CONFIG_GLOBAL": os.devnull},
    )
    return result.stdout.strip()


@pytest.fixture
def repository(folder: Path) -> Path:
    """A repository whose key was taken out again."""
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "sub").mkdir()
    (folder / "sub" / "ä.env").write_text(f"\nKEY={KEY}\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "add it")
    (folder / "sub" / "ä.env").write_text("KEY=\n")
    git(folder, "commit", "--quiet", "--all", "-m", "take it out")
    return folder


def test_history_knows_what_the_files_do_not_show(run: Run, repository: Path) -> None:
    assert run("scan", ".").code == 0
    ran = run("scan", "--git-history", ".", "sub", "sub/ä.env", "--format", "json")
    assert ran.code == 1
    (finding,) = json.loads(ran.out)["findings"]
    assert finding["commit"] == git(repository, "rev-parse", "HEAD~1")
    assert (finding["path"], finding["line"], finding["column"]) == ("sub/ä.env", 2, 5)
    assert finding["object"] == git(repository, "rev-parse", "HEAD~1:sub/ä.env")
    text = run("scan", "--git-history", ".").out
    assert text == f"sub/ä.env:2:5: {MASK} (commit {finding['commit'][:12]})\n"
    sarif = run("scan", "--git-history", "--format", "sarif", ".").out
    assert finding["commit"][:12] in sarif


def test_history_of_messages_tags_and_what_no_branch_reaches(run: Run, repository: Path) -> None:
    other = KeyFormat().generate()
    lost = KeyFormat().generate()
    third = KeyFormat().generate()
    git(repository, "commit", "--quiet", "--allow-empty", "-m", f"use {other.reveal()}")
    git(repository, "tag", "-a", "v1", "-m", third.reveal())
    (repository / "lost").write_text(lost.reveal())
    git(repository, "hash-object", "-w", "lost")
    (repository / "lost").unlink()
    out = run("scan", "--git-history", ".").out
    assert other.mask in out
    assert f": {third.mask}" in out
    (line,) = [line for line in out.splitlines() if lost.mask in line]
    assert line.startswith("blob ")
    assert SECRET not in out
    assert other.reveal()[17:] not in out


def test_history_runs_nothing_of_the_repository(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = repository.parent / "trap"
    script = repository.parent / "script"
    script.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
    script.chmod(0o755)
    (repository / ".gitattributes").write_text("* diff=trap filter=trap\n")
    for name in ("diff.external", "diff.trap.command", "diff.trap.textconv", "filter.trap.smudge"):
        git(repository, "config", name, str(script))
    for name in ("core.fsmonitor", "core.pager", "pager.log", "gpg.program"):
        git(repository, "config", name, str(script))
    git(repository, "config", "log.showSignature", "true")
    # A hook's environment is about another repository.
    monkeypatch.setenv("GIT_DIR", str(repository.parent / "nowhere"))
    assert run("scan", "--git-history", ".").code == 1
    assert not trap.exists()


def test_objects_larger_than_a_chunk(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msk_auth.cli._git.CHUNK", 10)
    assert run("scan", "--git-history", ".").code == 1


def test_history_that_is_empty(run: Run, folder: Path) -> None:
    git(folder, "init", "--quiet")
    assert run("scan", "--git-history", ".").code == 0
    (folder / "a").mkdir()
    assert run("scan", "--git-history", "a", "-", stdin="").code == 0


def test_history_without_a_repository(run: Run, folder: Path) -> None:
    ran = run("scan", "--git-history", ".", "-", stdin="")
    assert ran.code == 2
    assert "not a git repository" in ran.err


def test_history_without_git(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    ran = run("scan", "--git-history", ".")
    assert (ran.code, ran.err) == (2, "msk-auth: git is not installed.\n")


def test_git_that_fails_or_stops(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(script: str) -> str:
        folder = repository.parent / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "git").write_text(f'#!/bin/sh\ncase "$*" in\n{script}\nesac\n')
        (folder / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        return run("scan", "--git-history", ".").err

    listed = "*rev-parse*) echo /r;;\n*batch-check*) echo blob 1234 9;;\n"
    assert answered("*) exit 1;;") == "msk-auth: git failed\n"
    assert answered(f"{listed}*) read x; echo 1234 missing;;") == (
        "msk-auth: blob 1234: git cannot read it\n"
    )
    assert answered(f"{listed}*) read x; echo 1234 blob 9;;") == (
        "msk-auth: blob 1234: git stopped in the middle of it\n"
    )


# On a terminal.


def test_the_bar_shows_how_far_it_is() -> None:
    clock = FrozenClock()
    terminal = Terminal()
    bar = _scan.Progress(4_000_000, terminal, clock)
    bar.add(1_000_000)
    assert terminal.getvalue() == ""
    clock.sleep(0.5)
    bar.add(1_000_000)
    assert terminal.getvalue() == f"\r[{'#' * 15}{'.' * 15}]  50%  4 MB/s "
    clock.sleep(0.5)
    bar.add(9_000_000)
    assert "100%" in terminal.getvalue()
    bar.clear()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_bar_of_a_stream_without_a_size() -> None:
    clock = FrozenClock()
    terminal = Terminal()
    bar = _scan.Progress(0, terminal, clock)
    clock.sleep(1)
    bar.add(5_000_000)
    assert "5 MB/s" in terminal.getvalue()


def test_a_terminal_has_a_bar_and_the_same_result(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text(KEY)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    ran = run("scan", ".")
    assert (ran.code, ran.out) == (1, f"a:1:1: {MASK}\n")
    assert terminal.getvalue().startswith("\r\x1b[K")
