"""What a run leaves behind: its directory, budget, progress and report page."""
