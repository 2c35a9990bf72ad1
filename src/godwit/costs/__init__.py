"""What a load, a resume and a move cost, from constants that are assumed or measured. Pure."""
