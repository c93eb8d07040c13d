"""What differs between the settings that a run folder holds and those of now."""

from __future__ import annotations

from fetchsgd.runs.older import as_meant
from fetchsgd.runs.settings.layers import known_settings, merge
from fetchsgd.runs.settings.parts import PARTS
from fetchsgd.runs.toml_files import Settings

MAY_DIFFER = {("train", "device")}  # results do not depend on it, but for rounding


def changes(before: Settings, now: Settings) -> list[str]:
    """As `method.k was 20 and is now 10`, for every setting that differs; `now` is resolved.

    A key that is not in `before` counts as its default, or as what it meant then (older.py): an
    older version did not know it, and None is not written at all. An older version also wrote
    options that had no effect, such as the step of a grid without steps; these do not count.
    """
    before, defaults, found = merge(as_meant(before)), known_settings(now), []
    for part in PARTS:
        defaults[part.section][part.key] = part.default
    for section, values in now.items():
        old = defaults[section] | before.get(section, {})
        for key, value in values.items():
            if old[key] != value and (section, key) not in MAY_DIFFER:
                found.append(f"{section}.{key} was {old[key]!r} and is now {value!r}")
    for section, values in before.items():
        for key, value in values.items():
            if key not in now.get(section, {}) and not _had_no_effect(section, key, before):
                found.append(f"{section}.{key} was {value!r} and is no longer a setting")
    return found


def _had_no_effect(section: str, key: str, before: Settings) -> bool:
    """Whether it is an option of another part than the one that was named."""
    return any(
        part.section == section and part.not_an_option(key, part.name_in(before)) for part in PARTS
    )


def as_today(before: Settings) -> Settings:
    """Settings that an older version wrote, for today's program to do what was done then."""
    meant = merge(as_meant(before))
    return {
        section: {k: v for k, v in values.items() if not _had_no_effect(section, k, meant)}
        for section, values in meant.items()
    }
