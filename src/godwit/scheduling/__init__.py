"""Where requests start, what is loaded where, and what moves: pure, events in and decisions out."""
