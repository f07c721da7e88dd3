"""`avow prove --chain`: everything between a shop's commit and a row of a table is killed; then an audit."""
