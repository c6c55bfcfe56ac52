"""Our containers under the runners of others: a module each, imported by its runner alone."""
