"""From an nsys export to tidy frames; the only place that knows the schema of nsys."""
