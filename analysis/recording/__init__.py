"""The tidy tables of a sweep: made from results, merged, kept, and published."""
