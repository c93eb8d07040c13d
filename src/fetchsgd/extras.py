"""Which extra of this package brings a package that is missing."""

from __future__ import annotations

# As pyproject.toml has them, by the names under which they are imported.
EXTRAS = {
    "sim": ("matplotlib", "rich", "safetensors", "sklearn", "tensorboard", "typer"),
    "text": ("accelerate", "gguf", "transformers"),
    "llm": ("peft",),
    "flower": ("flwr",),
    "secure": ("cryptography",),
    "privacy": ("dp_accounting",),
    "metrics": ("prometheus_client",),
}


def how_to_install(missing: str | None) -> str | None:
    """The sentence for a module that could not be imported; None if no extra brings it."""
    package = (missing or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return f'{package} is not installed; install it with: pip install "fetchsgd[{extra}]"'
    return None
