"""`avow demo`: a shop, three peers and a pipeline on this machine; two processes are killed; then an audit."""
