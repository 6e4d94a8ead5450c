"""Policies of the scheduler, a file each; they combine freely.

queue    who is admitted next        budget   how many prompt tokens beside running decodes
victim   whose KV is given up when the pool runs out
"""
