"""Harbor tasks that were prepared: their episodes, and the verifiers that judge them."""
