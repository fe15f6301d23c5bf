"""What the reports of all kinds share: words, marks, one HTML file, Markdown, a terminal."""
