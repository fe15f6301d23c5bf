"""Reports of an audit: terminal, Markdown, SARIF, one HTML page, a text for upstream."""
