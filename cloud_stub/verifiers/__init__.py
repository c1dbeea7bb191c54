"""Target models behind one interface."""
