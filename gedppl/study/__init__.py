"""What only uses decisions: simulation, planning, baselines, off-policy evaluation, report,
command line.
"""
