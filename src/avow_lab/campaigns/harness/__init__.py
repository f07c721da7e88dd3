"""What all campaigns share: the course of a campaign, its report, and the programs that are started and killed."""
