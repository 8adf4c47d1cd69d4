"""The pages of the site: each is a module with its answer and a template beside it."""
