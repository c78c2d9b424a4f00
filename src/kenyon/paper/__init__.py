"""The paper: its figures and tables, its analyses of trained networks, and its theory."""
