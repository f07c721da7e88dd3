"""How a write gets decided: one pure class for clients and peers. Begin with `avow.writer.writer`."""
