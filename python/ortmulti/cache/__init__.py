"""What this user's processes keep on the disk: optimized models, and copies of models in object stores."""
