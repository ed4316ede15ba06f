"""The run config and code that a run has recorded, which may be somebody else's."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedkd_flwr.config import ConfigError, Configuration, named_code, read_recorded
from fedkd_flwr.custom_objects.importing import OBJECT, is_named, not_held
from fedkd_flwr.methods import METHODS, NAME, REGISTERED
from fedkd_flwr.runs.folders import CodeNotNamedError, DamagedRunError, RunDirectoryError
from fedkd_flwr.runs.reading import Run


def recorded_config(run: Run, named: Collection[str] = ()) -> Configuration:
    """Return the config of a run, which may have been moved."""
    try:
        require_named(run.path, run.config, (*run.allow_code, *named))
        _require_objects(run)
        recorded = read_recorded(run.config)
    except ConfigError as error:
        raise DamagedRunError(
            f"{run.path / 'config.json'} holds no valid run config: {error} "
            "Continue with the version of fedkd-flwr that wrote it, or run it again."
        ) from None
    was = recorded.run.output_dir
    folders = {name: Path(getattr(recorded.run, name)) for name in ("state_dir", "models_dir")}
    inside = {n: folder for n, folder in folders.items() if was and folder.is_relative_to(was)}
    return recorded.with_run(
        **{name: str(run.path / folder.relative_to(was)) for name, folder in inside.items()}
    )


def _require_objects(run: Run) -> None:
    strategy = str(run.config["strategy"])
    if NAME.fullmatch(strategy) and strategy not in {**METHODS, **REGISTERED}:
        raise RunDirectoryError(
            f"{run.path} used the method {strategy}, which was registered in Python: call "
            f"fedkd_flwr.register({strategy!r}, ...) in this process first."
        )
    missing = {key: name for key, value in run.config.items() for name in not_held(str(value))}
    if missing:
        named = ", ".join(f"{key} = {name}" for key, name in missing.items())
        again = ", ".join(f"{key.replace('-', '_')}=..." for key in missing)
        raise RunDirectoryError(
            f"{run.path} was started with Python objects ({named}): pass the same objects again, "
            f"as in fedkd_flwr.resume(path, {again})."
        )


def require_same_objects(run: Run, given: Mapping[str, Any]) -> None:
    """Refuse other values for the Python objects that a run was started with."""
    for key, value in given.items():
        before = str(run.config.get(key, ""))
        now = ",".join(value) if isinstance(value, list | tuple) else str(value)
        if f"{OBJECT}:" in before and now != before:
            raise ConfigError(
                f"{run.path} was started with {key} = {before}; pass the same object again, "
                f"not {key} = {now}."
            )


def names_of_code(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names ``module:object`` in a flat run config, each with the keys that hold it."""
    names: dict[str, list[str]] = defaultdict(list)
    for key, name in named_code(config):
        if not name.startswith(f"{OBJECT}:"):
            names[name].append(key)
    return dict(names)


def require_named(path: Path, config: Mapping[str, Any], given: Collection[str]) -> None:
    """Refuse a recorded run config with code that the user has not named."""
    names = names_of_code(config)
    others = [name for name in names if not is_named(name, given)]
    if not others:
        return
    named = ", ".join(f"{key} = {name}" for name in others for key in names[name])
    packages = dict.fromkeys(name.partition(":")[0].partition(".")[0] for name in others)
    typed = " ".join(f"--allow-code {package}" for package in packages)
    raise CodeNotNamedError(
        f"{path} names code ({named}), and a run directory may come from somebody else: to let it "
        f"run on this machine, type {typed}, or in Python allow_code={list(packages)}."
    )
