"""The stories of calls: the record of one call, the ring that keeps the last ones, and their wire form."""
