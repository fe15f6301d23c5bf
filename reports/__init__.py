"""Reports: stored runs as terminal tables, JUnit files, Markdown, pages and pictures."""
