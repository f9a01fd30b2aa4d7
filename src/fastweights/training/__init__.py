"""How it is learned: loops, run folders, checkpoints, processes side by side. Knows no task by name."""
