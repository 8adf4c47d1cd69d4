"""What a change would give, predicted from one profiled run: a step time with an interval, or a reason why not."""
