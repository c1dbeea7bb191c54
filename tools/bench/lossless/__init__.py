"""Is the distribution of the output the target's own, whatever is drafted? A statistical answer."""
