"""How the sessions of one model are created."""
