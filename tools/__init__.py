"""Development scripts. Nothing here is part of the wheel."""
