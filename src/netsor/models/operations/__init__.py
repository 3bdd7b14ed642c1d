"""What models do with arrays, on values whose axes are products of finite and infinite factors."""
