"""`avow demo`: a shop, three peers and a pipeline on this machine; two of them are killed, and the books are closed."""
