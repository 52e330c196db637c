"""The pocket model's table of skills, measured over HTTP on the running application."""
