"""``tightrope rm serve``: a reward model that other processes and machines can ask."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from tightrope.cli.arguments import Quiet
from tightrope.config.errors import TightropeError

if TYPE_CHECKING:
    from tightrope.scoring.reward_server import RewardServer

TOKEN_VARIABLE = "TIGHTROPE_REWARD_TOKEN"
PORT = 8750
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PATIENCE = 30.0
"""Seconds for which Ctrl-C waits for answers under way."""
MEBIBYTE = 1 << 20


def serve(
    model: Path,
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on. 0.0.0.0: from other machines too.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="0: any that is free.")] = PORT,
    token_file: Annotated[
        Path | None, Parameter(help="Write the token here, readable by you alone, instead of showing it.")
    ] = None,
    token_budget: Annotated[
        int, Parameter(help="Tokens of one forward pass; a run's training.token_budget gives the same last bits.")
    ] = 8192,
    max_megabytes: Annotated[int, Parameter(help="Largest request, in MiB.")] = 64,
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Parameter(help="As model.dtype.")] = "auto",
    device: Annotated[Literal["auto", "cpu", "cuda", "mps"], Parameter(help="As model.device.")] = "auto",
    quiet: Quiet = False,
) -> None:
    """Answer requests for rewards over HTTP until Ctrl-C. Prints the address; every request needs the token.

    The token is TIGHTROPE_REWARD_TOKEN if that is set, else a new random one.

    Parameters
    ----------
    model
        Reward-model folder or run.
    """
    for name, number, least in (
        ("--port", port, 0),
        ("--token-budget", token_budget, 1),
        ("--max-megabytes", max_megabytes, 1),
    ):
        if number < least or (name == "--port" and number > 65535):
            raise TightropeError("not a number that can be", where=name, found=str(number))
    token = token_of(os.environ.get(TOKEN_VARIABLE))
    from tightrope.assemble.reward_service import reward_service
    from tightrope.assemble.threads import choose_threads
    from tightrope.config.schema import ModelSection
    from tightrope.scoring.reward_server import RewardServer

    choose_threads()
    section = ModelSection(name=str(model), dtype=dtype, device=device)
    service = reward_service(section, token, token_budget, max_megabytes * MEBIBYTE)
    try:
        server = RewardServer((host, port), service, quiet)
    except OSError as error:
        raise TightropeError(
            f"cannot listen here: {error.strerror or error}",
            where=f"{host}:{port}",
            fix="choose another --port or --host",
        ) from error
    if token_file is not None:
        write_token(token_file, token)
    announce(server, token, token_file)
    until_interrupted(server)


def token_of(given: str | None) -> str:
    """Raises TightropeError for one that is no header value."""
    if given is None:
        return secrets.token_urlsafe(24)
    if not given or not (given.isascii() and given.isprintable()) or " " in given:
        raise TightropeError("not a token", where=TOKEN_VARIABLE, expected="ASCII letters, digits and signs, no blank")
    return given


def write_token(path: Path, token: str) -> None:
    """For its owner alone, from the first byte on; what a link points to is not written over."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(opened, "w", encoding="ascii") as file:
        os.fchmod(opened, 0o600)
        file.write(token + "\n")


def announce(server: RewardServer, token: str, token_file: Path | None) -> None:
    """The address on standard output, for scripts; what people need on standard error."""
    health = server.service.health
    print(f"serving {health.name}, fingerprint {health.fingerprint}; stop with Ctrl-C", file=sys.stderr)
    if token_file is not None:
        print(f"export {TOKEN_VARIABLE}=$(cat {token_file})", file=sys.stderr)
    elif TOKEN_VARIABLE not in os.environ:
        print(f"export {TOKEN_VARIABLE}={token}", file=sys.stderr)
    if server.server_name not in LOOPBACK:
        print("warning: other machines can ask; texts and token travel unencrypted", file=sys.stderr)
    print(server.url, flush=True)


def until_interrupted(server: RewardServer) -> None:
    """SIGTERM ends it as Ctrl-C does: answers under way are finished, nothing new is taken."""
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        server.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        server.server_close()
    if not server.drain(PATIENCE):
        print("warning: left before every request was answered", file=sys.stderr)
    print(f"stopped after {server.answered} requests, {server.scored} samples", file=sys.stderr)


def interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
