"""The pages of the site: each is a module with its answer, next to a template."""
