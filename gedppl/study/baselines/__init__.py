"""The algorithms a user would otherwise pick, one file each, with the same ask / tell."""
