"""What a server tells of itself: metrics, stories of calls, traces and the line of statistics."""
