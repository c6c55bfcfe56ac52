"""Adapters: what the configurations of trainers name, a folder a trainer."""
