"""What knows MkDocs: the pages of the site, its theme, and the hooks of its build."""
