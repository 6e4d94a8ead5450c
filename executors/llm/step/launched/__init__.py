"""Steps that the host packs and launches: packed inputs, captured graphs, results that come later."""
