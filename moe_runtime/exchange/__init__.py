"""How tokens reach the ranks that hold their experts, and come back."""
