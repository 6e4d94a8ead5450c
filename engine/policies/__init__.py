"""Queue, budget and victim policies, a file each."""
