"""Encoders: models whose tokens attend in both directions, for vectors and scores of whole texts."""
