"""What turns stored runs into terminal tables, JUnit files, Markdown, pages and pictures."""
