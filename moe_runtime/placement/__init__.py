"""Where experts live on this rank, how tokens find them, and how many came."""
