"""A trained reward model as a service: loaded, checked against its own manifest, and named by a fingerprint."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tightrope.config.schema import ModelSection
from tightrope.models.load import load_tokenizer, resolve_model_folder
from tightrope.models.manifest import base_hash, read_manifest, require_kind, template_hash, tokenizer_hash
from tightrope.models.roles import load_reward
from tightrope.scoring.remote_protocol import Health
from tightrope.scoring.reward_model import RewardModel, fingerprints
from tightrope.scoring.reward_server import BODY_LIMIT, Service
from tightrope.training.selftest import fingerprint_check, require

FINGERPRINT_DIGITS = 16


def reward_service(
    model: ModelSection, token: str | None, token_budget: int | None, body_limit: int = BODY_LIMIT
) -> Service:
    """Raises TightropeError where ``model.name`` is no reward model, or scores other than on the day it was made."""
    folder = resolve_model_folder(model.name, model.revision)
    require_kind(folder, "reward")
    role = load_reward(folder, model)
    source = RewardModel(role, load_tokenizer(folder), token_budget)
    manifest = read_manifest(folder)
    if manifest is not None and manifest.fingerprints:
        require([fingerprint_check(fingerprints(source), manifest.fingerprints, role)])
    given = Path(model.name).expanduser()
    name = given.resolve().name if given.exists() else model.name  # a hub name stays whole
    health = Health(name=name, fingerprint=fingerprint_of(folder, str(role.network.dtype)))
    return Service(source, health, token, body_limit)


def fingerprint_of(folder: Path, dtype: str) -> str:
    """Of what the scores depend on: weights and their type, tokenizer, chat template."""
    parts = (base_hash(folder), tokenizer_hash(folder), str(template_hash(folder)), dtype)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:FINGERPRINT_DIGITS]
