"""A folder for each dialect: schema, conversion to the engine's call, encoding of its deltas, routes."""
