"""Measures what scraping costs: the reports that arrive meanwhile, and itself."""
