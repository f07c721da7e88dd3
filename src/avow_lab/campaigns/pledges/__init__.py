"""`avow prove --pledges`: services and coordinators are killed with -9 at every step of a pledge."""
