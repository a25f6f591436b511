"""Who takes which node: the EPs are asked in turn, their claims are checked, merged and limited, and explained."""
