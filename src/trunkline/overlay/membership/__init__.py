"""Who is there: SWIM."""
