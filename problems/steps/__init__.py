"""Builders of whole steps."""
