"""What the scripts that repeat public reports' experiments share, and what they run in processes of their own."""
