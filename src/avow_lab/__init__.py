"""How Avow is proven: simulator, checkers, mutations, campaigns against real processes, and the demo.

Ships in the same wheel. Its commands (simulate, prove, demo) reach `avow` through the entry-point group
`avow.commands`; nothing in `avow` imports this package.
"""
