"""`avow prove --pledges`: services and coordinators killed with -9 at every step of a pledge; then all is checked."""
