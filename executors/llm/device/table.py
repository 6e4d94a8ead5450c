"""Finds the `Device` of a name in settings, or of a torch device. See `executors/devices.py` for the table."""

from __future__ import annotations

import functools
import importlib

import torch

from executors.devices import DEVICES
from executors.llm.device.base import Device, unsupported


def class_of(name: str) -> type[Device]:
    """Return the class of a kind of `DEVICES`. Imports its module."""
    module, _, cls = DEVICES[name].place.partition(":")
    device_class: type[Device] = getattr(importlib.import_module(module), cls)
    return device_class


def find_device(name: str) -> Device:
    """Return the device that the setting `device` names. Raises ConfigError."""
    if name == "auto":
        return next(
            device_class for kind in reversed(DEVICES) if (device_class := class_of(kind)).count()
        ).find(None)
    kind, colon, number = name.partition(":")
    if kind in DEVICES and (not colon or (number.isdecimal() and str(int(number)) == number)):
        return class_of(kind).find(int(number) if colon else None)
    raise unsupported(name)


def shares_weights(name: str) -> bool:
    """Return whether processes that are forked after a load share its weights on the device that the setting names. No driver is
    asked, so that they can use a device that shares none; for "auto" that is one that may be there. Raises ConfigError."""
    if name == "auto":
        likely = (device for kind in reversed(DEVICES) if (device := class_of(kind)).is_likely())
        return next(likely).shares_weights
    prefix, _, _ = name.partition(":")
    if prefix not in DEVICES:
        raise unsupported(name)
    return class_of(prefix).shares_weights


def open_device(name: str) -> str:
    """Open the device that the setting names, as the first tensor would. Returns torch's name of it, "" for one that is never
    opened. Raises as `find_device`, and the device's errors."""
    device = find_device(name)
    return str(device.place) if device.open() else ""


@functools.cache
def device_of(place: torch.device) -> Device:
    """Return the device on which torch keeps such tensors. Tensors without memory ("meta") count as the CPU's."""
    return class_of(place.type if place.type in DEVICES else "cpu")(place)


def kinds_here() -> tuple[str, ...]:
    """Return the kinds of which this machine has a device."""
    return tuple(name for name in DEVICES if class_of(name).count())
