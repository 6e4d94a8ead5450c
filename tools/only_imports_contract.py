"""An import-linter contract type: these modules import each other, the standard library and a short list."""

import sys
from collections.abc import Iterator

import grimp
from importlinter import Contract, ContractCheck, fields, output


class OnlyImportsContract(Contract):
    """Fields: `modules`, where `package.*` means the plain modules directly in a package; `allowed` packages."""

    type_name = "only_imports"

    modules = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        checked = {m for name in self.modules for m in _plain_modules(graph, name)}  # type: ignore[attr-defined]
        parents = {module.rpartition(".")[0] for module in checked}  # `from package import module` names both
        allowed = {*sys.stdlib_module_names, *(self.allowed or ())}  # type: ignore[misc]
        foreign = [
            (module, imported)
            for module in sorted(checked)
            for imported in sorted(graph.find_modules_directly_imported_by(module) - checked - parents)
            if imported.partition(".")[0] not in allowed
        ]
        return ContractCheck(kept=not foreign, metadata={"foreign": foreign})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module, imported in check.metadata["foreign"]:
            output.print_error(f"{module} is not allowed to import {imported}.")


def _plain_modules(graph: grimp.ImportGraph, name: str) -> Iterator[str]:
    package, star, _ = name.partition(".*")
    if not star:
        yield name
        return
    for child in graph.find_children(package):
        if not graph.find_children(child):
            yield child
