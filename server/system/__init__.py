"""The serving process and the system below it: threads, garbage collection, logs, paths, orphans."""
