"""The ModelExecutor contract, and the executors that keep it. Torch lives only below here."""
