"""Which kernels a model gets on its device: chosen, and checked before they are used."""
