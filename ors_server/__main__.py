"""``python -m ors_server`` is ``ors-server``."""

from ors_server.cli import main

if __name__ == "__main__":
    main()
