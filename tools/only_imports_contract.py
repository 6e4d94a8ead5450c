"""An import-linter contract type: these modules import each other, the standard library and a short list."""

import sys

import grimp
from importlinter import Contract, ContractCheck, fields, output


class OnlyImportsContract(Contract):
    """Fields: `modules` (checked with their descendants), `allowed` (more modules or packages they may import)."""

    type_name = "only_imports"

    modules = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField(), required=False)

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        roots: list[str] = list(self.modules)  # type: ignore[call-overload]
        allowed = {*roots, *(self.allowed or ()), *sys.stdlib_module_names}  # type: ignore[misc]
        missing = [root for root in roots if root not in graph.modules]
        checked = sorted(m for m in graph.modules if _within(m, roots))
        foreign = [
            (module, imported)
            for module in checked
            for imported in sorted(graph.find_modules_directly_imported_by(module))
            if not _within(imported, allowed)
        ]
        return ContractCheck(
            kept=not foreign and not missing, metadata={"foreign": foreign, "missing": missing}
        )

    def render_broken_contract(self, check: ContractCheck) -> None:
        for module in check.metadata["missing"]:
            output.print_error(f"There is no module {module}.")
        for module, imported in check.metadata["foreign"]:
            output.print_error(f"{module} is not allowed to import {imported}.")


def _within(module: str, packages: set[str] | list[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:n]) in packages for n in range(1, len(parts) + 1))
