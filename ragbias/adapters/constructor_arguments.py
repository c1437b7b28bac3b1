"""Arguments of constructors as other classes name them, for the integrations' models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FOR_LOADING = (
    *("dtype", "torch_dtype", "device", "device_map", "trust_remote_code"),
    *("use_safetensors", "gguf_file", "revision"),
)


def renamed(
    values: Mapping[str, Any], names: Mapping[str, str], fields: Mapping[str, Any], error: type[Exception]
) -> dict[str, Any]:
    """The arguments by the names of a model's fields; those for loading go to ``model_kwargs``.

    Args:
        values: arguments of the constructor; ``None`` for a renamed one counts as not given.
        names: the field by each other name; ``model`` is one only where it is a string.
        fields: of the model.

    Raises:
        error: something is given twice, or an argument for loading together with a model that is loaded already.
    """
    found = dict(values)
    for name, own in names.items():
        if name not in found or (name == "model" and not isinstance(found[name], str)):
            continue
        value = found.pop(name)
        if value is not None and found.setdefault(own, value) != value:
            raise error(f"{name}={value!r} and {own}={found[own]!r} are the same; give one of them")
    for own in names.values():
        if own in found and found[own] is None:
            del found[own]  # the default
    device, device_map = found.get("device"), found.get("device_map")
    if device is not None and device_map is not None:
        raise error(f"device={device!r} and device_map={device_map!r}; give one of them")
    given = {name: found.pop(name) for name in FOR_LOADING if name in found and name not in fields}
    given = {name: value for name, value in given.items() if value is not None}
    if given:
        own_kwargs = found.get("model_kwargs") or {}
        if twice := sorted(given.keys() & own_kwargs.keys()):
            raise error(f"{', '.join(twice)} is given twice, as an argument and in model_kwargs; give it once")
        if loaded := [name for name in ("lm", "model", "pipeline", "llm") if found.get(name) is not None]:
            raise error(f"{', '.join(given)}: for loading a model, but {loaded[0]} is loaded already; leave it out")
        found["model_kwargs"] = {**own_kwargs, **given}
    return found
