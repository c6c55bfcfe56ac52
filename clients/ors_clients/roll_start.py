"""``ors_clients.roll.start`` under the name that configuration files of 0.1 have."""

from ors_clients.roll.start import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
