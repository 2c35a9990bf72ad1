"""From flags, godwit.toml and the environment to settings that have been checked."""

import os
import re
import socket
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from godwit.config import (
    BUILT_IN_MODELS,
    HeadSettings,
    ModelSettings,
    Settings,
    WorkerSettings,
    check_listen,
    check_settings,
    parse_settings,
)
from godwit.costs.families import family_named
from godwit.errors import ConfigError
from godwit.profile import read_profile
from godwit.scheduling.policies import policy_named


class MovingEngine(StrEnum):
    """Engines whose moves can be measured on this machine: embedded llama.cpp, or two vLLM servers."""

    LLAMACPP = "llamacpp"
    VLLM = "vllm"


BedEngine = Annotated[MovingEngine, typer.Option("--engine", help="What computes, on two workers.")]
VllmPython = Annotated[
    Path, typer.Option("--vllm-python", envvar="GODWIT_VLLM_PYTHON", help="The interpreter that has vLLM.")
]


def read_settings(path: Path | None, assigned: Sequence[str] = ()) -> Settings:
    """The settings of a file (None: the defaults), those of --set, and the environment's secrets."""
    if path is None:
        return parse_settings("", os.environ, assigned)
    try:
        return parse_settings(path.read_text(encoding="utf-8"), os.environ, assigned)
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config: {path} is not UTF-8 text") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from error


def whole_numbers(option: str, text: str, at_least: int = 1) -> list[int]:
    """What an option lists with commas; ConfigError where it is anything else."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"{option}: whole numbers with commas between them, not {text!r}") from error
    if min(numbers) < at_least:
        raise ConfigError(f"{option}: every number must be at least {at_least}, not {text!r}")
    return numbers


def with_flags(settings: Settings, section: str, **flags: Any) -> Settings:
    """The settings with every flag that is not None put into its place in `section`, and checked again."""
    given = {name: value for name, value in flags.items() if value is not None}
    return check_settings(replace(settings, **{section: replace(getattr(settings, section), **given)}))


def with_profile(settings: Settings, path: Path | None) -> Settings:
    """The settings with --profile for `moves.profile`."""
    return with_flags(settings, "moves", profile=None if path is None else str(path))


def with_scheduling(
    settings: Settings, policy: str | None, store: Path | None, keep_alive_s: float | None
) -> Settings:
    """The settings with --policy, --store and --keep-alive."""
    path = None if store is None else str(store)
    return with_flags(settings, "head", policy=policy, store=path, keep_alive_s=keep_alive_s)


def with_models(settings: Settings, models: list[str], engine: str | None) -> Settings:
    """The settings with the models that --model names, and with --engine for all of them."""
    if models:
        chosen = tuple(_model(name, settings.models, engine) for name in models)
    elif engine == "fake" and settings.models == Settings().models:
        chosen = (ModelSettings(name="fake", engine="fake"),)
    else:
        chosen = settings.models
    if engine is not None:
        chosen = tuple(replace(model, engine=engine) for model in chosen)
    return check_settings(replace(settings, models=chosen))


def check_head(settings: Settings) -> None:
    """Everything about a head that can be wrong before it starts."""
    check_choices(settings)
    check_head_files(settings)
    check_listen("head.host", settings.head.host, settings.security, serves_clients=True)


def check_choices(settings: Settings) -> None:
    """What a head is told by name."""
    policy_named(settings.head.policy)
    family_named(settings.hazard.family)


def check_head_files(settings: Settings) -> None:
    """What a head reads, on the machine where it runs."""
    if settings.moves.profile is not None:
        read_profile(Path(settings.moves.profile))
    _check_tls("head", settings.head)


def check_worker(settings: Settings) -> None:
    """Everything about a worker that can be wrong before it starts."""
    check_listen("worker.peer_host", settings.worker.peer_host, settings.security, serves_clients=False)
    _check_tls("worker", settings.worker)
    for model in settings.models:
        # Of a folder vLLM's engine says itself what it lacks.
        if model.path is not None and not (
            Path(model.path).is_file() or (model.engine == "vllm" and Path(model.path).is_dir())
        ):
            what = "folder" if model.engine == "vllm" else "file"
            raise ConfigError(
                f"models.path: there is no {what} {model.path} for {model.name!r}; built-in models, which "
                f"need no path: {', '.join(BUILT_IN_MODELS)}"
            )


def _check_tls(section: str, settings: HeadSettings | WorkerSettings) -> None:
    for key, path in (("tls_cert", settings.tls_cert), ("tls_key", settings.tls_key)):
        if path is not None and not Path(path).is_file():
            raise ConfigError(f"{section}.{key}: there is no file {path}")


def head_at(url: str) -> str:
    """What --join names; ConfigError where that can be no head's URL."""
    parts = urlsplit(url)
    try:
        is_one = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_one = False  # a port above 65535
    if not is_one:
        raise ConfigError(f"--join: {url!r} is no URL of a head; it looks like http://127.0.0.1:8080")
    return url


def admin_key() -> str | None:
    """The key for the admin API, from GODWIT_ADMIN_KEY."""
    return parse_settings("", os.environ).security.admin_key


def worker_name(settings: Settings) -> str:
    """The configured name, or one from this machine's name and the process id."""
    return settings.worker.name or f"{socket.gethostname()}-{os.getpid()}"


def _model(text: str, configured: tuple[ModelSettings, ...], engine: str | None) -> ModelSettings:
    for model in configured:
        if model.name == text:
            return model
    if text in BUILT_IN_MODELS:
        return ModelSettings(name=text)
    if engine == "fake":
        return ModelSettings(name=text, engine="fake")
    path = Path(text)
    if path.is_file():
        name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip("._-") or "model"
        return ModelSettings(name=name, path=str(path.resolve()))
    known = sorted({*BUILT_IN_MODELS, *(model.name for model in configured)})
    raise ConfigError(f"--model: {text!r} is no file and no known model; known: {', '.join(known)}")
