"""What the start says of the defaults of sampling: what they are, where they come from, and what to set where there are none."""

from __future__ import annotations

from server.model_defaults.sampling import SamplingDefaults

_CURE = '--override-generation-config \'{"temperature": 0.7, "min_p": 0.1}\''


def sampling_note(defaults: SamplingDefaults, source: str, *, is_default_file: bool = False) -> str:
    """One line. `source`: `GenerationConfig.source`. `is_default_file`: the default model's file, served by its path."""
    neutral = SamplingDefaults()
    settings = [
        f"{name} {value:g}" for name, value in defaults.own.items() if value != getattr(neutral, name)
    ]
    if source:
        return f"{', '.join(settings) or 'temperature 1'} ({source}), unless a request says otherwise"
    if is_default_file:
        cure = "served by name, or where none is given, this model gets Cohort's"
    else:
        cure = f"answers wander more than with some, such as {_CURE}"
    return f"temperature 1 and nothing else: the model brings no defaults; {cure}"
