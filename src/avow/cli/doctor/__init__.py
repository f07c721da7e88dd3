"""`avow doctor`: one module per area that it checks."""

from avow.cli.doctor.command import doctor

__all__ = ["doctor"]
