"""From TOML and --set to a checked scenario."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from godwit.costs.families import family_named
from godwit.errors import ConfigError
from godwit.scenarios.schema import Head, Scenario
from godwit.scheduling.policies import policy_named
from godwit.traces import LENGTHS

Raw = dict[str, Any]
Overrides = tuple[tuple[str, Any], ...]
"""Keys as --set takes them, and their values."""

T = TypeVar("T")


def names() -> list[str]:
    """The built-in scenarios."""
    folder = resources.files("godwit.scenarios") / "built_in"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def read_raw(name: str) -> Raw:
    """A built-in scenario, or one in a file whose name ends with .toml, as it stands there.

    ConfigError lists the names that exist, or says what is wrong with the file.
    """
    if name.endswith(".toml"):
        return _read_own(Path(name))
    if name not in names():
        raise ConfigError(
            f"there is no scenario {name!r}; choose one of: {', '.join(names())}; or a file that ends with "
            ".toml"
        )
    file = resources.files("godwit.scenarios") / "built_in" / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _read_own(path: Path) -> Raw:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_assignment(text: str) -> tuple[str, Any]:
    """Key and value of one KEY=VALUE; a value that is no TOML is text."""
    key, is_there, value = text.partition("=")
    if not is_there or not key.strip():
        raise ConfigError(f"--set: KEY=VALUE, as in workload.rate_per_s=0.8, not {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def scenario_of(raw: Raw, overrides: Iterable[tuple[str, Any]] = ()) -> Scenario:
    """The scenario with these keys set; ConfigError names a wrong key and those that are allowed."""
    changed = msgspec.to_builtins(raw)
    for key, value in overrides:
        _assign(changed, key, value)
    scenario = _convert(changed, Scenario, "")
    _check(scenario)
    return scenario


def head_of(scenario: Scenario, policy: str) -> Head:
    """The head's settings under one of the scenario's policies."""
    if policy not in scenario.policies:
        raise ConfigError(
            f"--policy: this scenario has no policy {policy!r}; choose one of: {', '.join(scenario.policies)}"
        )
    return _convert({**scenario.head, **scenario.policies[policy]}, Head, f"policies.{policy}")


def _check(scenario: Scenario) -> None:
    """What types cannot say."""
    if scenario.workload.model not in scenario.models:
        raise ConfigError(
            f"workload.model: there is no model {scenario.workload.model!r}; choose one of: "
            f"{', '.join(scenario.models)}"
        )
    for name in scenario.policies:
        _check_head(name, head_of(scenario, name))
    _check_baselines(scenario)
    _check_machines(scenario)
    workload = scenario.workload
    if workload.source == "lognormal" and None in (workload.prompts, workload.outputs, workload.rate_per_s):
        raise ConfigError("workload: a lognormal source needs prompts, outputs and rate_per_s")
    if workload.warm_up_minutes >= workload.minutes:
        raise ConfigError(
            f"workload.warm_up_minutes: must be less than workload.minutes ({workload.minutes:g}), not "
            f"{workload.warm_up_minutes:g}: no request would count"
        )
    if workload.source in LENGTHS and workload.rate_per_s is None:
        raise ConfigError(f"workload.rate_per_s: is needed, since {workload.source} has no times")


def _check_head(name: str, head: Head) -> None:
    for check, value in ((policy_named, head.policy), (family_named, head.family)):
        try:
            check(value)
        except ConfigError as error:
            raise ConfigError(f"policies.{name}: {error.message.partition(': ')[2]}") from error


def _check_baselines(scenario: Scenario) -> None:
    needed = 2 if scenario.report == "fleet" else 1
    if len(scenario.baselines) < needed:
        raise ConfigError(
            f"baselines: a {scenario.report!r} report needs {needed} of the policies: "
            f"{', '.join(scenario.policies)}"
        )
    named = {"baselines": scenario.baselines, "ablations.policies": scenario.ablations.policies}
    for key, policies in named.items():
        for name in policies:
            if name not in scenario.policies:
                raise ConfigError(
                    f"{key}: there is no policy {name!r}; choose one of: {', '.join(scenario.policies)}"
                )


def _check_machines(scenario: Scenario) -> None:
    workload = scenario.workload
    model = scenario.models[workload.model]
    for name, machine in scenario.machines.items():
        for key in ("decode", "prefill"):
            rates = (
                getattr(machine, f"{key}_tps"),
                model.decode_ms if key == "decode" else model.prefill_tps,
            )
            if rates == (None, None):
                raise ConfigError(f"machines.{name}: neither it nor the model says how quick its {key} is")
        if machine.devices < model.devices:
            raise ConfigError(
                f"machines.{name}.devices: {machine.devices} are too few for {workload.model!r}, which takes "
                f"{model.devices}"
            )
        if machine.device_gb * model.devices < model.checkpoint_gb:
            raise ConfigError(
                f"machines.{name}.device_gb: {machine.device_gb:g} GB on each of {model.devices} devices are "
                f"too few for {workload.model!r}, whose checkpoint has {model.checkpoint_gb:g} GB"
            )
        if machine.sessions is not None and machine.replay is not None:
            raise ConfigError(f"machines.{name}: has sessions or a replay, not both")


def _assign(raw: Raw, key: str, value: Any) -> None:
    """Put a value into its place; dots in a key lead inwards, quoted ones do not."""
    try:
        path = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--set: {key!r} is no key") from error
    section = raw
    while isinstance(inner := next(iter(path.values())), Mapping):
        section = section.setdefault(next(iter(path)), {})
        path = dict(inner)
        if not isinstance(section, dict):
            raise ConfigError(f"--set: {key!r} is no key: it leads into a value")
    section[next(iter(path))] = value


def _convert(raw: Raw, kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(_with_name(raw, kind, str(error)), kind, where)) from error


def _with_name(raw: Raw, kind: type, message: str) -> str:
    """msgspec's message with the key of a table for the first `[...]`: the first one that is wrong."""
    section, dots, _ = message.partition(" - at `$.")[2].partition("[...]")
    table = raw.get(section)
    if not dots or not isinstance(table, Mapping):
        return message
    for name, value in table.items():
        try:
            msgspec.convert({**raw, section: {name: value}}, kind)
        except msgspec.ValidationError as error:
            return str(error).replace("[...]", f"[{name}]", 1)
    return message


def _explain(message: str, kind: type, where: str) -> str:
    """msgspec's message with the key in front, and what is allowed instead of an unknown key or value."""
    what, _, path = message.partition(" - at `")
    inner = path.rstrip("`").removeprefix("$").removeprefix(".")
    key = ".".join(part for part in (where, inner) if part)
    options = _types_at(kind, inner)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        allowed = ", ".join(field.name for option in options for field in getattr(option, "fields", ()))
        return f"{f'{key}.' if key else ''}{unknown[1]}: no such key; allowed here: {allowed}"
    if what.startswith("Invalid enum value"):
        what += f"; allowed: {', '.join(value for one in options for value in getattr(one, 'values', ()))}"
    return f"{key or 'the scenario'}: {what[:1].lower()}{what[1:]}"


def _types_at(kind: type, path: str) -> list[Any]:
    """What msgspec's path leads to, as in `machines[...].sessions`: of a union all its parts."""
    options: list[Any] = [msgspec.inspect.type_info(kind)]
    for part in re.findall(r"\w+|\[[^]]*\]", path):
        if part.startswith("["):
            inner = [getattr(one, "value_type", getattr(one, "item_type", None)) for one in options]
        else:
            fields = [field for one in options for field in getattr(one, "fields", ())]
            inner = [field.type for field in fields if field.name == part]
        options = [option for one in inner for option in getattr(one, "types", (one,))]
    return options
