"""Why did it disconnect: every cause that the product names is made to happen, and the truth is kept to compare."""
