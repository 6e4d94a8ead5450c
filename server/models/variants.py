"""`Variant`: a further name of a model, under which prompts have other variables of the template, or samples other defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from executors.contract import ConfigError
from server.model_defaults.sampling import SamplingDefaults

if TYPE_CHECKING:
    from server.state.server_state import ServedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`template`: variables of the chat template for requests that do not give them. `sampling`: defaults in place of the
    model's, by the names of generation_config.json."""

    name: str
    template: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def of(self, model: ServedModel) -> ServedModel:
        """The model as it answers under this name. Raises ConfigError if the model cannot have these."""
        template, defaults = model.template, model.defaults
        if self.template:
            if template is None:
                raise ConfigError("the model has no chat template that could read variables")
            template = template.with_variables(self.template)
        return replace(model, template=template, defaults=self._sampling(defaults))

    def _sampling(self, defaults: SamplingDefaults) -> SamplingDefaults:
        own = SamplingDefaults.of(self.sampling, f"the variant {self.name}")
        stated = tuple(dict.fromkeys((*defaults.stated, *own.stated)))
        return replace(defaults, **cast(dict[str, Any], own.own), stated=stated)
