"""`avow prove --chain`: from a shop's commit to a table's row while everything on the way is killed; then the audit."""
