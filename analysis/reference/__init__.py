"""Reference data, each fact once."""
