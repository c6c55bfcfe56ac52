"""``python -m ors_cli`` is ``ors-server``."""

from ors_cli import main

if __name__ == "__main__":
    main()
