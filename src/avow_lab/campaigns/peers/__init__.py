"""`avow prove`: real peers, real clients, real faults; then the whole history is checked."""
