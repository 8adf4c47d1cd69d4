"""From an answer to Markdown, HTML and charts."""
