"""An audit, shown: terminal, Markdown, SARIF, one HTML page, the text of a report upstream."""
