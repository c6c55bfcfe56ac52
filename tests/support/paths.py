"""Folders of the checkout that tests read."""

from pathlib import Path

__all__ = ["DOCS", "RECIPES", "ROOT"]

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RECIPES = ROOT / "clients" / "recipes"
