"""Several models behind one address: which are declared, which are loaded, and who waits for which."""
