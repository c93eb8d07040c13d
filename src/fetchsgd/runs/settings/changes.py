"""What differs between the settings that a run folder holds and those of now."""

from __future__ import annotations

from fetchsgd.runs.settings.layers import known_settings, merge
from fetchsgd.runs.toml_files import Settings

MAY_DIFFER = {("train", "device")}  # results do not depend on it, but for rounding


def changes(before: Settings, now: Settings) -> list[str]:
    """As `method.k was 20 and is now 10`, for every setting that differs; `now` is resolved.

    A key that is not in `before` counts as its default: an older version did not know it, and None
    is not written at all.
    """
    before, defaults, found = merge(before), known_settings(now), []
    for section, values in now.items():
        old = defaults[section] | before.get(section, {})
        for key, value in values.items():
            if old[key] != value and (section, key) not in MAY_DIFFER:
                found.append(f"{section}.{key} was {old[key]!r} and is now {value!r}")
    for section, values in before.items():
        for key, value in values.items():
            if key not in now.get(section, {}):
                found.append(f"{section}.{key} was {value!r} and is no longer a setting")
    return found
