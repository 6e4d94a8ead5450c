"""The console: its files, which a browser loads, and the feed of steps that it draws."""
