"""Tables and figures for readers, in every form: Markdown, CSV, LaTeX, pictures, a page."""
